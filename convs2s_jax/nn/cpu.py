"""What XLA's CPU compiler needs written in another way to be fast, or computes faster by another algorithm.

On other devices the same functions are used where they cost nothing; barriers exist on CPUs only.
"""

from collections.abc import Sequence
from functools import cache, partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.polynomial import polyfromroots

from convs2s_jax.nn.types import Array, accumulation_dtype

Pair = tuple[Array, Array]

# Barriers against recomputation


@jax.custom_jvp
def materialise_gradient(x: Array) -> Array:
    """Identity whose gradient XLA's CPU compiler materialises once instead of recomputing it in each use.

    A linear map uses this gradient three times, and dropout masks would be recomputed with it each time.
    """
    return x


@materialise_gradient.defjvp
def _materialised_tangent(primals: tuple[Array], tangents: tuple[Array]) -> Pair:
    return primals[0], materialise_on_cpu(tangents[0])


@jax.jit  # so that it is traced once for each shape
def materialise_on_cpu(x: Array) -> Array:
    """Return x behind a barrier on CPU, so that XLA materialises it instead of fusing its producers with its consumers.

    XLA's other compilers make better fusion decisions without a barrier, and need less memory traffic.
    """
    apart: Array = jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)
    return apart


# Matrix products in bfloat16


def tangent_product(x: Array, dw: Array, precision: str | None = None) -> Array:
    """Multiply x dw over the last axis, [..., C] and [C, D] -> [..., D]: the derivative of y = x w in the direction dw.

    In reverse mode it becomes the gradient of the kernel: the product dy' x over all axes but the last, then a
    transposition. XLA's CPU compiler would fuse the two and choose a slow layout, so they are kept apart there.

    Args:
      x: an array with at least two axes.
      dw: the tangent of a kernel.
      precision: precision of the product, as in `jax.lax.Precision`.
    """
    return jnp.einsum("...C,DC->...D", x, materialise_on_cpu(dw.T), precision=precision)


@jax.custom_jvp
def matmul(x: Array, w: Array) -> Array:
    """Multiply x w over the last axis of x [..., C] and w [C, D], as a product of two matrices.

    The derivative with respect to w is `tangent_product`, which XLA's CPU compiler computes faster in bfloat16.
    """
    return _matmul_2d(x, w)


@matmul.defjvp
def _matmul_tangent(primals: Pair, tangents: Pair) -> Pair:
    """Product rule: dy = dx w + x dw."""
    (x, w), (dx, dw) = primals, tangents
    return _matmul_2d(x, w), _matmul_2d(dx, w) + tangent_product(x, dw)


def _matmul_2d(x: Array, w: Array) -> Array:
    return (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:-1], w.shape[-1])


# Convolutions as matrix products


def convolution(w: Array, x: Array) -> Array:
    """Convolve x [B, T + K - 1, C] with w [K, C, D]:  y = windows(x) w,  dw = windows(x)' dy,  dx_{t+j} += dy_t w_j'.

    The backward pass saves x, not its windows. These three formulas were the fastest of those measured. Unlike the
    gradient of XLA's convolution, they are fast inside a loop.
    """
    return _convolution(w, x, jax.default_matmul_precision.value)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _convolution(w: Array, x: Array, precision: str | None) -> Array:
    """JAX may trace the derivative outside the context that sets `precision`, so it is passed."""
    return jnp.einsum("BTX,XD->BTD", windows(x, len(w)), w.reshape(-1, w.shape[-1]), precision=precision)


@_convolution.defjvp
def _convolution_tangent(precision: str | None, primals: Pair, tangents: Pair) -> Pair:
    return _convolution(*primals, precision), _convolution_of_tangents(precision, *primals, *tangents)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=0)
def _convolution_of_tangents(precision: str | None, w: Array, x: Array, dw: Array, dx: Array) -> Array:
    """Compute dy_t = windows(x)_t dw + sum_j dx_{t+j} w_j, written so that its transpose is the fast reverse mode.

    The transpose sums over the taps in float32 or better and in the opposite order, so the last tap comes first here.
    """
    width, _, outputs = w.shape
    dy = tangent_product(windows(x, width), dw.reshape(-1, outputs), precision)
    dx = dx.astype(accumulation_dtype(x.dtype))
    for j in reversed(range(width)):
        part = dx[:, j : j + dy.shape[1]]
        dy += jnp.einsum("BTC,CD->BTD", part, w[j], precision=precision, preferred_element_type=dy.dtype)
    return dy


def windows(x: Array, width: int) -> Array:
    """Collect the inputs that each output position sees, [B, T + K - 1, C] -> [B, T, K * C]."""
    count = x.shape[1] - width + 1
    return jnp.concatenate([x[:, j : j + count] for j in range(width)], axis=-1)


# Convolutions with fewer multiplications (Winograd 1980; Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural
# Networks", section 4)

POINTS = (0, 1, -1, 2, -2)
"""Where the polynomials behind the transforms are evaluated, besides at infinity: tiles have at most 6 products."""


@cache
def transforms(outputs: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return B' [n, n], G [n, K] and A' [m, n] for m `outputs`, K = `width` and n = m + K - 1 (Toom and Cook).

    Row i of B' contains the coefficients of the product of all (t - p) except that of point i, and G divides by its
    value at point i. The last row is for the point at infinity.
    """
    points = POINTS[: outputs + width - 2]
    others = [[q for q in points if q != p] for p in points]
    inputs = np.stack([*([*polyfromroots(rest), 0.0] for rest in others), polyfromroots(points)])
    scales = np.array([*(prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)), 1])

    def powers(count: int) -> np.ndarray:
        """1, t, ..., t^(count - 1) at each point; at infinity only the highest power counts."""
        return np.concatenate([np.vander(points, count, increasing=True), np.eye(count)[-1:]])

    return inputs, powers(width) / scales[:, None], powers(outputs).T


def tile(length: int, width: int) -> int:
    """Return the smallest m whose tiles cover this many outputs with the fewest products. 1 is the plain sum."""
    largest = max(len(POINTS) + 2 - width, 1)
    return min(range(1, largest + 1), key=lambda m: -(-length // m) * (m + width - 1))


@jax.jit  # so that equal layers are traced once
def winograd(w: Array, x: Array) -> Array:
    """Convolve x [B, T + K - 1, C] with w [K, C, D]: [B, T, D], computed in float32 or better.

    A tile of m outputs is  y = A' [(G w) * (B' x)],  where * stands for n = m + K - 1 products, here matrix products
    over the channels. The plain sum over taps needs m K of them, or 12 instead of 6 with K = 3 and m = 4. A, B and G
    have small constants, so the rest are sums of inputs, taps and results. Gradients need equally few products.

    The price is rounding. In float32 the errors of such a tile are about 3e-6 of the largest output, ten times those of
    the sum. They grow with n, so n is at most 6. Where no tile saves products, as for K >= 6, it is `convolution`.

    JAX sees that it is linear in w and in x, so it has derivatives of every kind and order.
    """
    width, inputs, channels = w.shape
    m = tile(x.shape[1] - width + 1, width)
    if m == 1:
        return convolution(w, x)
    dtype, w, x = w.dtype, w.astype(accumulation_dtype(w.dtype)), x.astype(accumulation_dtype(x.dtype))
    rows, length = x.shape[0], x.shape[1] - width + 1
    tiles, beyond = -(-length // m), -(-(width - 1) // m)  # the last tile reads this many beyond itself
    of_inputs, of_taps, of_outputs = transforms(m, width)
    x = jnp.pad(x, ((0, 0), (0, m * (tiles + beyond) - x.shape[1]), (0, 0))).reshape(rows, -1, m, inputs)
    read = [x[:, i // m : i // m + tiles, i % m].reshape(rows * tiles, inputs) for i in range(m + width - 1)]
    products = [_sum(a, read) @ _sum(b, list(w)) for a, b in zip(of_inputs, of_taps, strict=True)]
    y = jnp.stack([_sum(row, products).reshape(rows, tiles, channels) for row in of_outputs], axis=2)
    return y.reshape(rows, tiles * m, channels)[:, :length].astype(dtype)


def _sum(coefficients: np.ndarray, arrays: Sequence[Array]) -> Array:
    """Sum arrays times coefficients, in their dtype; arrays with coefficient 0 are skipped."""
    terms = [a if c == 1 else c * a for c, a in zip(coefficients.tolist(), arrays, strict=True) if c]
    return sum(terms[1:], terms[0])
