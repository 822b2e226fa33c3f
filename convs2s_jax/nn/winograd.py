"""Convolutions over time with fewer multiplications (Winograd 1980; Lavin and Gray 2016, "Fast Algorithms for
Convolutional Neural Networks", section 4).

A tile of m outputs of a kernel of width K is  y = A' [(G w) * (B' x)],  where * stands for n = m + K - 1 products, here
matrix products over the channels. The plain sum over taps needs m K of them, or 12 instead of 6 with K = 3 and m = 4.
A, B and G have small constants, so the rest are sums of inputs, taps and results. Gradients need equally few products.

The price is rounding. In float32 the errors of such a tile are about 3e-6 of the largest output, ten times those of the
sum. They grow with n, so n is at most 6.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array, accumulation_dtype

POINTS = (0, 1, -1, 2, -2)
"""Where the polynomials behind the transforms are evaluated, besides at infinity."""

MOST_PRODUCTS = len(POINTS) + 1
"""The number of products n of the largest tile."""

Matrix = tuple[tuple[float, ...], ...]


class Transforms(NamedTuple):
    """The transform matrices for tiles of m outputs and kernels of width K, n = m + K - 1.

    Attributes:
      inputs: B', [n, n].
      taps: G, [n, K].
      outputs: A', [m, n].
    """

    inputs: Matrix
    taps: Matrix
    outputs: Matrix


@cache
def transforms(outputs: int, width: int) -> Transforms:
    """Return the transforms for m `outputs` and K = `width`, by the transposed method of Toom and Cook.

    Row i of B' contains the coefficients of the product of all (t - p) except that of point i, and G divides by its
    value at point i. The last row is for the point at infinity.
    """
    points = POINTS[: outputs + width - 2]
    others = [[q for q in points if q != p] for p in points]
    scales = [prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)] + [1]
    inputs = [[*_coefficients(rest), 0] for rest in others] + [_coefficients(points)]
    taps = [[a / s for a in row] for row, s in zip(_powers(points, width), scales, strict=True)]
    values = _powers(points, outputs)
    results = [[row[t] for row in values] for t in range(outputs)]
    return Transforms(inputs=_matrix(inputs), taps=_matrix(taps), outputs=_matrix(results))


def tile(length: int, width: int) -> int:
    """Return the smallest m whose tiles cover this many outputs with the fewest products. 1 is the plain sum."""
    largest = max(MOST_PRODUCTS - width + 1, 1)
    return min(range(1, largest + 1), key=lambda m: -(-length // m) * (m + width - 1))


@jax.jit  # so that equal layers are traced once
def winograd(w: Array, x: Array) -> Array:
    """Convolve x [B, T + K - 1, C] with w [K, C, D], 2 <= K <= 5: [B, T, D], computed in float32 or better.

    JAX sees that it is linear in w and in x, so it has derivatives of every kind and order.
    """
    width, inputs, channels = w.shape
    dtype, w, x = w.dtype, w.astype(accumulation_dtype(w.dtype)), x.astype(accumulation_dtype(x.dtype))
    rows, length = x.shape[0], x.shape[1] - width + 1
    m = tile(length, width)
    tiles = -(-length // m)
    by = transforms(m, width)
    x = jnp.pad(x, ((0, 0), (0, m * (tiles + _beyond(m, width)) - x.shape[1]), (0, 0))).reshape(rows, -1, m, inputs)
    read = [x[:, i // m : i // m + tiles, i % m].reshape(rows * tiles, inputs) for i in range(m + width - 1)]
    products = [
        _sum(of_inputs, read) @ _sum(of_taps, list(w)) for of_inputs, of_taps in zip(by.inputs, by.taps, strict=True)
    ]
    y = jnp.stack([_sum(row, products).reshape(rows, tiles, channels) for row in by.outputs], axis=2)
    return y.reshape(rows, tiles * m, channels)[:, :length].astype(dtype)


def _beyond(outputs: int, width: int) -> int:
    """Return how many tiles beyond itself the last one reads."""
    return -(-(width - 1) // outputs)


def _sum(coefficients: Sequence[float], arrays: Sequence[Array]) -> Array:
    """Sum arrays times coefficients, in their dtype; arrays with coefficient 0 are skipped."""
    terms = [a if c == 1 else c * a for c, a in zip(coefficients, arrays, strict=True) if c]
    return sum(terms[1:], terms[0])


def _powers(points: Sequence[int], count: int) -> list[list[int]]:
    """Return 1, t, ..., t^(count - 1) at each point; at infinity only the highest power counts."""
    return [[p**j for j in range(count)] for p in points] + [[int(j == count - 1) for j in range(count)]]


def _coefficients(roots: Sequence[int]) -> list[int]:
    """Return the coefficients of the product of all (t - r), lowest power first."""
    found = [1]
    for r in roots:
        found = [up - r * same for up, same in zip([0, *found], [*found, 0], strict=True)]
    return found


def _matrix(rows: Sequence[Sequence[float]]) -> Matrix:
    return tuple(tuple(float(a) for a in row) for row in rows)
