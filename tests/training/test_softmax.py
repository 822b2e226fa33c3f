"""The softmax layer of the training step: loss and gradient of the public form, which is differentiated by JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn.affine import Affine
from convs2s_jax.training.loss import cross_entropy, loss
from convs2s_jax.training.softmax import summed_cross_entropy
from tests.helpers import drills_but
from tests.meshes import assert_equal_each, batch
from tests.models.laws import config, near_to, parameters

O, V = 5, 11
BATCH = batch(3, 6, 4, 5)
BATCH = jax.tree.map(lambda tokens: np.minimum(tokens, 12), BATCH)


def problem(shape, dtype=jnp.float32, scale=1.0, words=V):
    """A layer, features and targets; the first target of each row does not count."""
    rng = np.random.default_rng(2)
    layer = Affine(
        w=jnp.asarray(scale * rng.normal(size=(O, words)), dtype), b=jnp.asarray(rng.normal(size=words), jnp.float32)
    )
    targets = rng.integers(PAD + 1, words, shape)
    targets[:, 0] = PAD
    return layer, jnp.asarray(rng.normal(size=(*shape, O)), dtype), jnp.asarray(targets, jnp.int32)


def plain(layer, features, targets, *, smoothing):
    scores = jnp.einsum("BTO,OV->BTV", features.astype(jnp.float32), layer.w.astype(jnp.float32)) + layer.b[None, None]
    return cross_entropy(scores, targets, smoothing)


def with_gradient(function, **options):
    """(layer, features, targets) -> the gradient of half the loss, so that the cotangent is not 1, and the sums."""

    def half(layer, features, targets):
        total, nll = function(layer, features, targets, **options)
        return 0.5 * total, (total, nll)

    return jax.jit(jax.grad(half, (0, 1), has_aux=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("shape", "shards"), drills_but([((6, 4), 1), ((6, 4), 3), ((1, 7), 1)], kept=[((6, 4), 3)]), ids=str
)
def test_sums_and_gradients_are_those_of_all_scores_at_once(shape, shards, smoothing):
    given, rows = problem(shape), 5  # several chunks, the last not full
    found = with_gradient(summed_cross_entropy, smoothing=smoothing, shards=shards, rows=rows)(*given)
    assert_equal_each(found, with_gradient(plain, smoothing=smoothing)(*given), tolerance=1e-6)
    alone = jax.jit(partial(summed_cross_entropy, smoothing=smoothing, shards=shards, rows=rows))(*given)
    assert_equal_each(alone, found[1], tolerance=1e-6)


def test_large_scores_neither_overflow_nor_vanish():
    given = problem((3, 4), scale=1e4)
    found = with_gradient(summed_cross_entropy, smoothing=0.1, rows=512)(*given)
    assert_equal_each(found, with_gradient(plain, smoothing=0.1)(*given), tolerance=1e-5)


def test_in_bfloat16_errors_are_those_of_rounding_and_sums_are_exact():
    given = problem((16, 32), jnp.bfloat16)
    (layer, dh), sums = with_gradient(summed_cross_entropy, smoothing=0.1, rows=16)(*given)
    (exact, exact_dh), exact_sums = with_gradient(plain, smoothing=0.1)(*given)
    assert (layer.w.dtype, layer.b.dtype, dh.dtype) == (jnp.bfloat16, jnp.float32, jnp.bfloat16)
    for ours, theirs in ((layer.w, exact.w), (layer.b, exact.b), (dh, exact_dh)):
        assert near_to(ours, np.float32(theirs))
        assert np.linalg.norm(np.float32(ours) - np.float32(theirs)) < 0.01 * np.linalg.norm(np.float32(theirs))
    assert_equal_each(sums, exact_sums, tolerance=1e-6)


MODELS = {
    "own kernel": config(),
    "tied": config("gru", "cho"),
    "light, no bias": config("lightconv", "lightconv"),
    "language model": config(decoder="language"),
}


@pytest.mark.parametrize("name", drills_but(MODELS, kept=["own kernel"]))
def test_the_training_loss_is_the_loss(name):
    cfg = MODELS[name]

    def differentiated(function):
        def summed(params):
            sums = function(params, cfg, BATCH, smoothing=0.1)
            return sums.loss, sums

        return jax.jit(jax.grad(summed, has_aux=True))(parameters(cfg))

    assert_equal_each(differentiated(partial(loss, first_order=True)), differentiated(loss), tolerance=2e-5, least=1e-3)
