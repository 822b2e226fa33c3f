"""Ten updates of fairseq's Nesterov optimiser, a change of the learning rate included, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.interop import fairseq
from convs2s_jax.training import optimizer
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run
from convs2s_jax.training.step import Batch, init_state, update
from tests import golden
from tests.helpers import drills_but


@pytest.mark.parametrize("name", drills_but(["nag_01_lr0.25", "nag_02_lr_change"], kept=["nag_02_lr_change"]))
def test_ten_updates_are_those_of_fairseq(name):
    arrays, info = golden.load(name)
    cfg = fairseq.config_from_args(info["config"])
    training = TrainingConfig(clip=float(info["clip_norm"]))
    start = {k.removeprefix("init/"): v for k, v in arrays.items() if k.startswith("init/")}
    params = fairseq.params_from_state_dict(cfg, start)
    state = init_state(params, optimizer.transformation(training.optimizer))
    batch = Batch(src=jnp.asarray(arrays["in/src_tokens"]), tgt=jnp.asarray(arrays["in/target"]))
    steps = compile_run(ProgramKey(cfg, training))

    for i, rate in enumerate(info["lrs"]):
        state, sums = update(steps, state, [batch], jnp.float32(rate), jax.random.key(0))
        np.testing.assert_allclose(sums.loss.loss, arrays["loss_sum64"][i], rtol=2e-6)
        np.testing.assert_allclose(sums.grad_norm, arrays["grad_norm64"][i], rtol=1e-5)
        if i == 0:
            compare(state.params, arrays, "after1")
    compare(state.params, arrays, "final64")
    # fairseq's buffer carries the rate: b = -rate * trace
    momentum = fairseq.state_dict(state.optimizer.trace)
    for key, value in momentum.items():
        np.testing.assert_allclose(-info["lrs"][-1] * value, arrays[f"momentum_buffer/{key}"], rtol=1e-4, atol=1e-7)


def compare(params, arrays, prefix):
    for name, value in fairseq.state_dict(params).items():
        expected = arrays[f"{prefix}/{name}"]
        error = np.linalg.norm(value - expected) / max(np.linalg.norm(expected), 1e-3)
        assert error < 1e-5, f"{name}: relative error {error:.1e}"
