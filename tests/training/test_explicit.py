"""Shardings in types: gradients are those of one device, and what has no type is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn import embedding
from convs2s_jax.training import explicit
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.meshes import assert_equal_each, mesh_of
from tests.models.kinds import pair
from tests.training.test_kinds_on_a_mesh import LEAST, gradients


def test_gradients_are_those_of_one_device():
    """Of one model; test_kinds_on_a_mesh.py has all kinds."""
    cfg = build(ModelConfig, {"embedding_dim": 32, "dropout": 0.3, **pair("dynamic", "dynamic")})
    assert_equal_each(gradients(cfg, mesh_of((4, 2, 1)), "explicit"), gradients(cfg), least=LEAST)


@pytest.mark.drill
def test_with_tensor_alone_gradients_are_those_of_one_device():
    """No axis of types has more than one device. JAX refused the gradient of depthwise taps and of recurrent cells."""
    cfg = build(ModelConfig, {"embedding_dim": 32, "dropout": 0.3, **pair("separable", "separable")})
    assert_equal_each(gradients(cfg, mesh_of((1, 1, 2)), "explicit"), gradients(cfg), least=LEAST)


def test_what_has_no_type_is_refused_with_the_reason():
    mesh = mesh_of((4, 2, 1))

    def loss(_params, rows, _key):
        return jnp.sum(rows.reshape(3, 1, 2))  # merges axes, and splits the result, at once

    def called(rows):
        return explicit.typed(lambda *given: (explicit.sharded_loss(loss, mesh)(*given), None), mesh, ())(
            {}, rows, None
        )

    rows = jax.device_put(np.ones((8, 2, 3), np.float32), jax.sharding.NamedSharding(mesh, P(("data", "fsdp"))))
    with pytest.raises(
        UserError, match=r"^parallel is 'explicit', which cannot train this model; use jit\. JAX reports: "
    ):
        jax.jit(called)(rows)


def test_such_a_model_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "rows", lambda table, indices: table[indices])
    with pytest.raises(
        UserError, match=r"^parallel is 'explicit', which cannot train this model; use jit\. JAX reports: "
    ):
        train(tiny.config(parallel="explicit", mesh__data=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()
