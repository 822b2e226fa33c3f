"""Sinusoidal positions (Vaswani et al. 2017, section 3.5)."""

import math
from collections.abc import Callable

import numpy as np

from convs2s_jax.core.tokens import PAD


def sinusoidal(rows: int, dim: int) -> np.ndarray:
    """Return rows p_n = [sin(n f_0), ..., sin(n f_{E/2-1}), cos(n f_0), ...],  f_i = 10000^(-i / (E/2 - 1)) (fairseq).

    The paper interleaves sines and cosines, and divides by E/2 in the exponent. Row n is for position n
    (`nn.embedding.position_rows`). Row PAD is zero.

    Args:
      rows: number of rows P.
      dim: embedding size E, even and at least 4.

    Returns:
      [P, E] in float32. Angles are products in float32; exp, sin and cos are computed in float64 and rounded once.
    """
    if dim < 4 or dim % 2:
        raise ValueError(f"dim is {dim}: half sines, half cosines; use an even number of at least 4")
    half = dim // 2
    step = np.float32(math.log(10000) / (half - 1))
    frequencies = _rounded(np.exp, np.arange(half, dtype=np.float32) * -step)
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies[None]
    table = np.concatenate([_rounded(np.sin, angles), _rounded(np.cos, angles)], axis=1)
    table[PAD] = 0.0
    return table


def _rounded(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Apply a function in float64 and round once to float32, so that all machines agree."""
    return function(x.astype(np.float64)).astype(np.float32)
