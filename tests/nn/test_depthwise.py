"""Depthwise, lightweight and dynamic convolutions against loops over time, taps and channels, gradients included."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import depthwise as module
from convs2s_jax.nn.depthwise import DEPTHWISE_FORMS, WIDE, depthwise
from tests.helpers import array, drills_but, operations

B, C = 2, 6
SIZES = [(1, 1, 1), (2, 5, 1), (3, 6, 2), (9, 4, 1), (4, 1, 3), (9, 7, 2)]
"""K, T, D: narrow and wide kernels, more and fewer positions than taps, one position."""
every_size = pytest.mark.parametrize(("width", "length", "dilation"), SIZES)
every_form = pytest.mark.parametrize("form", list(DEPTHWISE_FORMS))
every_head = pytest.mark.parametrize("heads", drills_but([6, 3, 1], kept=[3]))


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def single(*arrays):
    return [array(a) for a in arrays]


def each(w, x, dilation):
    """Every (b, t, j, c), the input position t + j D that is read there, and the index of its weight.

    Kernels of rows have one position, which t % 1 finds.
    """
    K, H = w.shape[-2:]
    for b, t, j, c in np.ndindex(len(x), x.shape[1] - (K - 1) * dilation, K, x.shape[2]):
        head = c // (x.shape[2] // H)
        yield b, t, t + j * dilation, c, (j, head) if w.ndim == 2 else (b, t % w.shape[1], j, head)


def loops(w, x, dilation):
    """y_{t,c} = sum_j w_{j,h(c)} x_{t+jD,c}, the kernel of position t where w has one for each."""
    y = np.zeros((len(x), x.shape[1] - (w.shape[-2] - 1) * dilation, x.shape[2]))
    for b, t, u, c, at in each(w, x, dilation):
        y[b, t, c] += w[at] * x[b, u, c]
    return y


def loops_gradients(w, x, dilation, dy):
    """dw and dx of sum(dy * y)."""
    dw, dx = np.zeros_like(w), np.zeros_like(x)
    for b, t, u, c, at in each(w, x, dilation):
        dw[at] += dy[b, t, c] * x[b, u, c]
        dx[b, u, c] += dy[b, t, c] * w[at]
    return dw, dx


@partial(jax.jit, static_argnums=0)
def pulled(function, w, x, dy):
    """y, dw, dx. One program: operation by operation compiles for ten times as long."""
    y, pull = jax.vjp(function, w, x)
    return y, *pull(dy)


def equals_loops(function, w, x, dy, dilation):
    expected = loops(w, x, dilation), *loops_gradients(w, x, dilation, dy)
    for ours, theirs in zip(pulled(function, *single(w, x, dy)), expected, strict=True):
        close(ours, theirs)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def shared(width, length, heads):
    return random(width, heads)


def moving(width, length, heads):
    return random(B, length, width, heads)


def by_row(width, length, heads):
    return random(B, 1, width, heads)


every_kernel = pytest.mark.parametrize("kernel", [shared, moving], ids=["shared", "moving"])


@every_kernel
@every_form
@every_head
@every_size
def test_outputs_and_gradients_equal_loops(kernel, form, heads, width, length, dilation):
    w = kernel(width, length, heads)
    x, dy = random(B, length + (width - 1) * dilation, C), random(B, length, C, seed=1)
    equals_loops(partial(depthwise, dilation=dilation, form=form), w, x, dy, dilation)


@every_kernel
@pytest.mark.parametrize(("width", "form"), [(WIDE - 1, "shifts"), (WIDE, "products")])
def test_the_form_is_chosen_by_the_width_of_the_kernel(kernel, width, form):
    w = kernel(width, 4, 3)
    w, x = single(w, random(B, 4 + width - 1, C))
    for chosen in DEPTHWISE_FORMS:
        same = str(jax.make_jaxpr(depthwise)(w, x)) == str(jax.make_jaxpr(partial(depthwise, form=chosen))(w, x))
        assert same == (chosen == form)


@every_kernel
@pytest.mark.parametrize("length", drills_but([3, 4, 7, 8, 9, 23], kept=[4, 23]))
@pytest.mark.parametrize(("width", "dilation"), [(2, 1), (4, 1), (3, 3)])
def test_blocks_of_positions_leave_the_result_as_it_is(kernel, length, width, dilation, monkeypatch):
    """Blocks of 3: whole ones, a rest, and windows that reach over more than a block."""
    monkeypatch.setattr(module, "BLOCK", 3)
    w = kernel(width, length, 3)
    x, dy = random(B, length + (width - 1) * dilation, C), random(B, length, C, seed=1)
    equals_loops(partial(depthwise, dilation=dilation, form="products"), w, x, dy, dilation)


@pytest.mark.parametrize("kernel", [shared, moving, by_row], ids=["shared", "moving", "by row"])
@every_form
@pytest.mark.parametrize(
    ("width", "dilation", "left", "length"), [(9, 1, 4, 1), (9, 1, 8, 2), (4, 2, 0, 7), (2, 3, 1, 11)]
)
def test_padding_acts_as_zeros(kernel, form, width, dilation, left, length, monkeypatch):
    """One position, fewer than taps, more, and several blocks; zeros on both sides or on one."""
    monkeypatch.setattr(module, "BLOCK", 3)
    reach = (width - 1) * dilation
    padding = (left, reach - left)
    w = kernel(width, length, 3)
    x, dy = random(B, length, C), random(B, length, C, seed=1)
    padded = np.pad(x, ((0, 0), padding, (0, 0)))
    dw, dx = loops_gradients(w, padded, dilation, dy)
    expected = loops(w, padded, dilation), dw, dx[:, left : left + length]
    found = pulled(partial(depthwise, dilation=dilation, form=form, padding=padding), *single(w, x, dy))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


def test_short_sequences_take_no_products_with_padding():
    """A centred kernel of 31 over 10 positions: matrices of 10 x 10, not 10 x 40."""
    w, x = jnp.zeros((2, 10, 31, 4)), jnp.zeros((2, 10, 8))
    text = jax.jit(partial(depthwise, padding=(15, 15))).lower(w, x).as_text()
    (product,) = [line for line in text.splitlines() if "dot_general" in line]
    assert "tensor<2x4x10x10xf32>" in product


def test_products_of_a_long_input_have_no_matrix_of_all_positions_by_all():
    """The largest array has less than ten numbers for each weight; such a matrix would have 34."""
    w, x = jnp.zeros((1, 1024, 31, 4)), jnp.zeros((1, 1024 + 30, 8))
    program = jax.make_jaxpr(partial(depthwise, form="products"))(w, x)
    found = [v.aval.size for one in operations(program.jaxpr) for v in one.outvars]
    assert len(found) > 10
    assert max(found) < 10 * w.size


@pytest.mark.parametrize("width", [3, 31])
def test_depthwise_is_xlas_grouped_convolution_in_the_sizes_of_a_model(width):
    w, x, dy = single(random(width, 64), random(4, 20 + width - 1, 64), random(4, 20, 64))

    def grouped(w, x):
        dimensions = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            x, w[:, None], (1,), "VALID", dimension_numbers=dimensions, feature_group_count=64
        )

    for a, b in zip(pulled(depthwise, w, x, dy), pulled(grouped, w, x, dy), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


@every_kernel
@pytest.mark.parametrize("form", drills_but(list(DEPTHWISE_FORMS), kept=["products"]))
def test_bfloat16_stays_bfloat16_and_within_its_rounding(kernel, form):
    """Sums are taken in float32: 0.01 of the largest element is about a rounding of 8 bits."""
    w = kernel(15, 32, 3)
    arrays = [a.astype(jnp.bfloat16) for a in single(w, random(B, 46, C), random(B, 32, C))]
    results = []
    for dtype in (jnp.bfloat16, jnp.float32):
        w, x, dy = (a.astype(dtype) for a in arrays)
        results.append(pulled(partial(depthwise, form=form), w, x, dy))
    for a, b in zip(*results, strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0, atol=0.01 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize("form", list(DEPTHWISE_FORMS))
def test_no_grouped_convolution_and_nothing_kept_but_kernel_and_input(form):
    w, x = jnp.ones((9, 3)), jnp.ones((2, 40, 6))
    convolve = partial(depthwise, form=form)
    program = jax.make_jaxpr(jax.grad(lambda w, x: jnp.sum(convolve(w, x) ** 2), (0, 1)))(w, x)
    assert "conv_general_dilated" not in str(program)
    kept = jax.eval_shape(lambda w, x: jax.vjp(convolve, w, x)[1], w, x)
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) <= w.size + x.size


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 5, 3)])
def test_softmax_sums_to_one_over_the_taps_of_each_head(shape):
    scores = random(*shape)
    expected = np.exp(scores) / np.exp(scores).sum(-2, keepdims=True)
    close(module.softmax(*single(scores)), expected)
    assert module.softmax(jnp.zeros(shape, jnp.bfloat16)).dtype == jnp.bfloat16
