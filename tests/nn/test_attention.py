"""Attention against loops over sentences, hypotheses and positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import attention
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.attention import MultiStepAttention
from tests.helpers import array

B, T, S, C, E = 3, 2, 4, 5, 6
MASK = np.array([[True] * 4, [False, True, True, True], [True, True, False, False]])


def random(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def inputs(beam):
    rows = B * beam
    maps = [random(C, E, seed=0), random(E, seed=1), random(E, C, seed=2), random(C, seed=3)]
    h, g = random(rows, T, C, seed=4), random(rows, T, E, seed=5)
    return maps, h, g, random(B, S, E, seed=6), random(B, S, E, seed=7)


def loops(maps, h, g, keys, values, mask):
    """d = (W_d h + b_d + g) sqrt(.5);  a = softmax(d . z);  c = sqrt(m) sum_j a_j v_j;  (W_c c + b_c + h) sqrt(.5)."""
    wq, bq, wc, bc = maps
    out, weights = np.zeros_like(h), np.zeros((*h.shape[:2], S))
    beam = len(h) // len(keys)
    for n in range(len(h)):
        b = n // beam
        real = [s for s in range(S) if mask[b, s]]
        for t in range(T):
            d = (h[n, t] @ wq + bq + g[n, t]) * np.sqrt(0.5)
            scores = np.exp([d @ keys[b, s] for s in real])
            c = np.zeros(E)
            for s, score in zip(real, scores, strict=True):
                weights[n, t, s] = score / scores.sum()
                c += weights[n, t, s] * values[b, s]
            out[n, t] = (c * np.sqrt(len(real)) @ wc + bc + h[n, t]) * np.sqrt(0.5)
    return out, weights


@jax.jit
def run(maps, h, g, keys, values, mask):
    wq, bq, wc, bc, h, g, keys, values = (jnp.asarray(x, jnp.float32) for x in (*maps, h, g, keys, values))
    params = MultiStepAttention(query=Affine(w=wq, b=bq), context=Affine(w=wc, b=bc))
    return attention.attend(params, h, g, keys, values, jnp.asarray(mask))


@pytest.mark.parametrize("beam", [1, 3])
def test_attend_equals_loops_with_hypotheses_sharing_their_sentence(beam):
    for ours, theirs in zip(run(*inputs(beam), MASK), loops(*inputs(beam), MASK), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_what_stands_in_padding_is_never_read():
    maps, h, g, keys, values = inputs(1)
    before = run(maps, h, g, keys, values, MASK)
    keys[~MASK], values[~MASK] = 1e4, -1e4
    for ours, theirs in zip(run(maps, h, g, keys, values, MASK), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_row_of_padding_gives_finite_numbers_and_gradients():
    maps, h, g, keys, values = inputs(1)
    mask = jnp.zeros((B, S), bool)
    out, a = run(maps, h, g, keys, values, mask)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(a, 1 / S)

    def total(keys):
        return jnp.sum(run(maps, h, g, keys, values, mask)[0])

    np.testing.assert_array_equal(jax.grad(total)(array(keys)), 0.0)


def test_bfloat16_takes_its_softmax_in_float32():
    scores = run(*inputs(1), MASK)[1]
    assert scores.dtype == jnp.float32
    maps, h, g, keys, values = inputs(1)
    wq, bq, wc, bc, h, g, keys, values = (array(x, jnp.bfloat16) for x in (*maps, h, g, keys, values))
    params = MultiStepAttention(query=Affine(w=wq, b=bq), context=Affine(w=wc, b=bc))
    out, a = attention.attend(params, h, g, keys, values, jnp.asarray(MASK))
    assert (out.dtype, a.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(np.sum(a, axis=-1), 1.0, rtol=1e-6)  # 1e-2 if it were summed in bfloat16
