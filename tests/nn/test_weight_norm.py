"""Weight normalisation as a change of parameters, against loops over norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.weight_norm import Normed
from tests.helpers import array


def random(*shape, seed=0):
    return array(np.random.default_rng([seed, *shape]).normal(size=shape))


@pytest.fixture
def tree():
    return {
        "table": random(7, 4),
        "linear": Affine(w=random(4, 6), b=random(6)),
        "layers": (Affine(w=random(3, 4, 6), b=random(6, seed=1)), None),
    }


def test_split_then_merge_is_the_identity(tree):
    there_and_back = weight_norm.merge(weight_norm.split(tree))
    assert jax.tree.structure(there_and_back) == jax.tree.structure(tree)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), there_and_back, tree)


def test_unsplit_gives_the_kernels_to_the_last_bit():
    w = jax.random.normal(jax.random.key(3), (3, 5, 64)).at[..., 7].set(0)
    back = weight_norm.unsplit(weight_norm.split({"layer": Affine(w=w, b=w[0, 0])}))
    np.testing.assert_array_equal(back["layer"].w, w)
    np.testing.assert_array_equal(back["layer"].b, w[0, 0])


def test_split_gives_one_length_an_output_channel_and_leaves_the_rest(tree):
    parts = weight_norm.split(tree)
    assert parts["table"] is tree["table"]
    assert parts["linear"].b is tree["linear"].b
    linear, conv = parts["linear"].w, parts["layers"][0].w
    assert (linear.g.shape, conv.g.shape) == ((1, 6), (1, 1, 6))
    for d in range(6):
        assert float(linear.g[0, d]) == pytest.approx(np.linalg.norm(linear.v[:, d]), rel=1e-6)
        assert float(conv.g[0, 0, d]) == pytest.approx(np.linalg.norm(np.ravel(conv.v[:, :, d])), rel=1e-6)


def test_merge_leaves_trees_without_normed_kernels(tree):
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, weight_norm.merge(tree), tree))


@pytest.mark.parametrize("shape", [(1, 1, 6), (3, 1, 1)], ids=["channels", "taps"])
def test_kernel_has_the_length_g_and_the_direction_v(shape):
    """[K, 1, 1] is one length a tap, as in the decoders of old fairseq checkpoints."""
    v, g = np.asarray(random(3, 4, 6)), np.asarray(random(*shape, seed=2))
    expected = np.zeros_like(v)
    for i in range(max(shape)):
        at = (slice(None), slice(None), i) if shape[2] > 1 else (i, slice(None), slice(None))
        expected[at] = np.ravel(g)[i] * v[at] / np.sqrt(np.sum(v[at] ** 2))
    np.testing.assert_allclose(
        weight_norm.kernel(Normed(v=jnp.asarray(v), g=jnp.asarray(g))), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_merged_kernel_does_not_depend_on_the_length_of_v(scale):
    v, g = random(3, 4, 6), random(1, 1, 6)
    np.testing.assert_allclose(
        weight_norm.kernel(Normed(v=v * scale, g=g)), weight_norm.kernel(Normed(v=v, g=g)), rtol=1e-5, atol=1e-6
    )


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


@pytest.mark.parametrize("derivative", ["reverse", "forward"])
def test_a_channel_of_zeros_has_derivatives(derivative):
    """Those of the other channels are what they are without it: there the root of 0 gave NaN."""
    w, ones = random(3, 4, 6), jnp.ones((3, 4, 6))

    def slopes(w):
        if derivative == "reverse":
            return jax.grad(lambda w: jnp.sum(weight_norm.normed(w).g))(w)
        return jax.jvp(lambda w: weight_norm.normed(w).g, (w,), (ones,))[1]

    found = np.asarray(slopes(w.at[..., 2].set(0.0)))
    np.testing.assert_array_equal(found[..., 2], 0.0)
    np.testing.assert_array_equal(np.delete(found, 2, -1), np.delete(np.asarray(slopes(w)), 2, -1))
