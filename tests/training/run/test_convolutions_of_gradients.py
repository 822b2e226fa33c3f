"""How the gradients of a run are executed on each platform, and that they are those of the public loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run, loss_of
from convs2s_jax.training.step import Batch, gradients
from tests.states import first_state

V, B, T = 30, 3, 11


def model(dtype="float32", precision="default", **execution):
    layers = (ConvLayer(16, 3),) * 3
    return ModelConfig(
        embedding_dim=16,
        dropout=0.1,
        dtype=dtype,
        matmul_precision=precision,
        encoder=ConvEncoderConfig(layers=layers, max_positions=80),
        decoder=ConvDecoderConfig(layers=layers, out_dim=16, max_positions=80),
        execution=ExecutionConfig(**execution),
    )


def batch():
    tokens = np.random.default_rng(0).integers(4, V, (2, B, T)).astype(np.int32)
    tokens[:, 0, 6:] = 1
    return Batch(src=jnp.asarray(tokens[0]), tgt=jnp.asarray(tokens[1]))


def params_of(cfg):
    return first_state(jax.random.key(0), cfg, TrainingConfig(), source=V, target=V).params


def test_gradients_of_training_are_those_of_the_public_loss():
    """The loss has sums over taps, as it is public; half of the products is all that is saved by training."""
    cfg, key = model(), jax.random.key(1)
    params = params_of(cfg)
    step = compile_run(ProgramKey(cfg))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(step.first)(params, batch(), key))
    found, sums = step.first(params, batch(), key)
    public = partial(gradients, loss_of(cfg, smoothing=TrainingConfig().label_smoothing), key=key)
    expected, same = jax.jit(public)(weight_norm.merge(params), batch())
    assert float(sums.loss) == pytest.approx(float(same.loss), rel=1e-6)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize(
    ("cfg", "platform"),
    [(model(), "gpu"), (model(), "tpu"), (model(precision="highest"), "cpu"), (model(convolution="xla"), "cpu")],
)
@pytest.mark.usefixtures("own_programs")
def test_other_devices_dtypes_and_choices_have_xlas_convolution(cfg, platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    step = compile_run(ProgramKey(cfg))
    program = str(jax.make_jaxpr(step.first)(params_of(cfg), batch(), jax.random.key(1)))
    assert program.count("conv_general_dilated") >= 6
