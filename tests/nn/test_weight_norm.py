"""Weight normalisation as a change of parameters, against loops over norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import struct, weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.weight_norm import Normed
from tests.helpers import array, same


def random(*shape, seed=0):
    return array(np.random.default_rng([seed, *shape]).normal(size=shape))


def test_split_gives_one_length_an_output_channel_and_is_undone_by_merge_and_unsplit():
    """`unsplit` to the last bit, also where a channel is zero."""
    conv = Affine(w=random(3, 4, 6).at[..., 4].set(0), b=random(6, seed=1))
    tree = {"table": random(7, 4), "linear": Affine(w=random(4, 6), b=random(6)), "layers": (conv, None)}
    parts = weight_norm.split(tree)
    assert parts["table"] is tree["table"]
    assert parts["linear"].b is tree["linear"].b
    for normed, w in ((parts["linear"].w, tree["linear"].w), (parts["layers"][0].w, conv.w)):
        flat = np.asarray(w).reshape(-1, 6)
        assert normed.g.shape == (1,) * (w.ndim - 1) + (6,)
        np.testing.assert_allclose(np.ravel(normed.g), [np.linalg.norm(flat[:, d]) for d in range(6)], rtol=1e-6)
    same(weight_norm.merge(parts), tree, 1e-6)
    same(weight_norm.unsplit(parts), tree, 0.0)
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, weight_norm.merge(tree), tree))


@pytest.mark.parametrize("shape", [(1, 1, 6), (3, 1, 1)], ids=["channels", "taps"])
def test_kernel_has_the_length_g_and_the_direction_v(shape):
    """[K, 1, 1] is one length a tap, as in the decoders of old fairseq checkpoints. The length of v has no effect."""
    v, g = np.asarray(random(3, 4, 6)), np.asarray(random(*shape, seed=2))
    expected = np.zeros_like(v)
    for i in range(max(shape)):
        at = (slice(None), slice(None), i) if shape[2] > 1 else (i, slice(None), slice(None))
        expected[at] = np.ravel(g)[i] * v[at] / np.sqrt(np.sum(v[at] ** 2))
    for scale in (1, 10):
        same(weight_norm.kernel(Normed(v=jnp.asarray(scale * v), g=jnp.asarray(g))), expected)


@pytest.mark.parametrize("shape", [(1, 1, 6), (3, 1, 1)], ids=["channels", "taps"])
def test_gradient_of_a_direction_is_orthogonal_to_it(shape):
    normed, c = Normed(v=random(3, 4, 6), g=random(*shape)), random(3, 4, 6, seed=3)
    gradient = jax.grad(lambda n: jnp.sum(c * weight_norm.kernel(n)))(normed)
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    assert float(jnp.max(jnp.abs(gradient.v))) > 0.1
    np.testing.assert_allclose(jnp.sum(gradient.v * normed.v, axis=axes), 0.0, atol=1e-5)


def test_a_channel_whose_squares_underflow_has_the_length_zero_and_stays_finite():
    """1e-30 squared is zero in float32: g = 0 with v = w would give 0 / 0."""
    w = random(3, 4, 6).at[..., 2].set(1e-30).at[..., 4].set(0.0)
    merged = np.asarray(weight_norm.kernel(weight_norm.normed(w)))
    np.testing.assert_allclose(merged, w, rtol=1e-5, atol=1e-29)
    assert (merged[..., [2, 4]] == 0).all()


@pytest.mark.parametrize("derivative", [jax.jacrev, jax.jacfwd])
def test_a_channel_of_zeros_has_derivatives(derivative):
    """Those of the other channels are what they are without it: there the root of 0 gave NaN."""
    w = random(3, 4, 6)
    slopes = derivative(lambda w: jnp.sum(weight_norm.normed(w).g))
    found = np.asarray(slopes(w.at[..., 2].set(0.0)))
    np.testing.assert_array_equal(found[..., 2], 0.0)
    np.testing.assert_array_equal(np.delete(found, 2, -1), np.delete(np.asarray(slopes(w)), 2, -1))


@struct.dataclass
class Scale(weight_norm.Normalised):
    """A record of a user's own kind, which has no kernel."""

    scale: jax.Array


def test_a_record_without_kernels_needs_no_split():
    assert not weight_norm.needs_split(Scale(jnp.ones(3)))
