"""Shardings in types: every kind of model has the gradients of one device, and what has no type is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.errors import UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn import embedding
from convs2s_jax.training import explicit, sharding
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs.configured import compile_configured
from tests import tiny
from tests.helpers import drills_but
from tests.meshes import assert_equal_each, batch, mesh_of
from tests.models import kinds
from tests.states import first_state

VOCABULARIES = {"source": 24, "target": 20}
KEY = jax.random.key(3)


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(kinds.together(), [("dynamic", "dynamic")]))
def test_every_kind_of_model_has_the_gradients_of_one_device(encoder, decoder):
    training = TrainingConfig()
    model = ModelConfig(embedding_dim=32, dropout=0.2, **kinds.pair(encoder, decoder))
    params = first_state(jax.random.key(1), model, training, **VOCABULARIES).params
    given = batch(0, 8, 7, 9)
    expected = jax.device_get(compile_configured(model, training).first(params, given, KEY))
    mesh = mesh_of((4, 2, 1))
    params = jax.device_put(params, sharding.shardings(params, mesh, "explicit"))
    given = jax.device_put(given, sharding.batch_sharding(mesh))
    found = jax.device_get(compile_configured(model, training, mesh, parallel="explicit").first(params, given, KEY))
    # the gradient of a bias of keys is zero: what rounding leaves of it is compared with all gradients
    assert_equal_each(found, expected, least=1e-3)


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
