"""One update: the same from any grouping of its rows."""

import itertools
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training.optimizer import AdamConfig, NesterovConfig
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state
from convs2s_jax.training.step import Batch, update
from tests import meshes
from tests.helpers import drills_but
from tests.states import first_state

MODEL = ModelConfig(
    embedding_dim=8,
    dropout=0.0,
    encoder=ConvEncoderConfig(layers=(ConvLayer(8, 3),), max_positions=32),
    decoder=ConvDecoderConfig(layers=(ConvLayer(8, 3),), out_dim=8, max_positions=32),
)
OPTIMIZERS = {"nesterov": NesterovConfig(), "adam": AdamConfig()}
BAD = list(itertools.product(["loss", "gradient"], [0, 3]))


@pytest.fixture
def batch():
    return jax.tree.map(jnp.asarray, meshes.batch(0, 8, 7, 9))


@lru_cache
def begun(model, training):
    """The state before the first update, and the compiled update, which several tests need."""
    state = jax.jit(partial(fresh_state, model=model, training=training, source=24, target=20))(jax.random.key(1))
    return jax.device_get(state), compile_run(ProgramKey(model, training))


def updated(training, groups, *, model=MODEL, rounds=3):
    state, steps = begun(model, training)
    state = jax.tree.map(jnp.array, state)  # copies: an update consumes its state
    with jax.numpy_dtype_promotion("standard" if training.optimizer.kind == "adam" else "strict"):
        # optax's Adam raises a float to an integer power, which strict promotion refuses
        for i in range(rounds):
            state, sums = update(steps, state, groups, jnp.float32(0.25), jax.random.key(i))
    return state, sums


def assert_close(one, other, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", drills_but(OPTIMIZERS, kept=["nesterov"]))
def test_accumulated_batches_equal_the_big_batch(batch, optimizer):
    training = TrainingConfig(optimizer=OPTIMIZERS[optimizer], label_smoothing=0.1)
    # unequal parts of other shapes: a mean of means would not agree
    parts = [
        Batch(src=batch.src[:2], tgt=jnp.pad(batch.tgt[:2], ((0, 0), (0, 2)), constant_values=PAD)),
        *(Batch(src=batch.src[i : i + 1], tgt=batch.tgt[i : i + 1]) for i in range(2, len(batch.src))),
    ]
    whole, whole_sums = updated(training, [batch])
    summed, sums = updated(training, parts)
    # Adam divides by the root of squared gradients, which magnifies rounding where a gradient is nearly zero
    assert_close(summed.params, whole.params, 1e-5 if optimizer == "nesterov" else 2e-3)
    if optimizer == "adam":  # the sums of the third update are those of such parameters
        _, whole_sums = updated(training, [batch], rounds=1)
        _, sums = updated(training, parts, rounds=1)
    assert_close(sums, whole_sums, 1e-5)
    assert int(sums.loss.tokens) == int(jnp.sum(batch.tgt != PAD))


def test_padding_rows_of_tables_are_never_trained(batch):
    state, _ = updated(TrainingConfig(), [batch])
    for side in (state.params.encoder, state.params.decoder):
        assert not np.any(side.embedding.table[PAD])
        assert not np.any(side.embedding.positions[PAD])


@pytest.mark.parametrize(("where", "skip"), drills_but(BAD, kept=[("gradient", 3)]))
def test_a_bad_step_changes_nothing_where_it_may_be_skipped(batch, where, skip):
    training = TrainingConfig(skip_bad_steps=skip)
    state = first_state(jax.random.key(1), MODEL, training, source=24, target=20)
    steps = compile_run(ProgramKey(MODEL, training))
    before = jax.device_get(state)
    grads, sums = steps.first(state.params, batch, None)
    if where == "loss":
        sums = sums.replace(loss=jnp.float32(jnp.nan))
    else:
        table = grads.decoder.embedding.table.at[5, 2].set(jnp.inf)
        grads = grads.replace(decoder=grads.decoder.replace(embedding=grads.decoder.embedding.replace(table=table)))
    after, report = steps.finish(state, (grads, sums), jnp.float32(0.25))
    assert after.step == 1
    changed = [not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)]
    assert (sum(changed) == 1) == bool(skip)  # the number of the step alone
    names = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(before.params)]
    bad = [name for name, finite in zip(names, report.finite, strict=True) if not finite]
    assert bad == ([] if where == "loss" else ["decoder/embedding/table"])
    good, _ = steps.finish(after, steps.first(after.params, batch, None), jnp.float32(0.25))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(good)) or not skip
