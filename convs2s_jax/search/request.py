"""What is asked of each sentence, besides what the options ask of all of them."""

from collections.abc import Sequence
from typing import NamedTuple

import flax.struct
import jax
import numpy as np
from jax import Array

from convs2s_jax.core.tokens import PAD

Tokens = Sequence[int] | np.ndarray


@flax.struct.dataclass
class Request:
    """Demands on B sentences.

    Attributes:
      max_lengths: [B] int32, most tokens before the end symbol.
      prefixes: [B, P] int32, tokens that the hypotheses begin with, then PAD. P may be 0.
      phrases: [B, C, K] int32, token sequences that must occur in the hypotheses, each followed by PAD; empty ones ask
        for nothing. C may be 0. Phrases and prefix must fit into the longest allowed hypothesis one after the other.
      keys: [B] random keys, for sampling only.
    """

    max_lengths: Array
    prefixes: Array
    phrases: Array
    keys: Array | None = None


class Sizes(NamedTuple):
    """Axes of a request: P, C and K."""

    prefix: int
    phrases: int
    phrase: int


def sizes(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]]) -> Sizes:
    """Axes that hold them all: prefixes in multiples of 8, so that they do not multiply compilations."""
    phrase = max((len(phrase) for wanted in phrases for phrase in wanted), default=0)
    return Sizes(
        prefix=-(-max((len(prefix) for prefix in prefixes), default=0) // 8) * 8,
        phrases=max((len(wanted) for wanted in phrases), default=0) if phrase else 0,
        phrase=phrase,
    )


def request(
    max_lengths: Sequence[int] | np.ndarray | Array,
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    keys: Array | None = None,
    *,
    axes: Sizes | None = None,
) -> Request:
    """A request from lists of unequal lengths, in arrays of the given axes or as large as it takes."""
    count = len(max_lengths)
    prefixes = prefixes if prefixes is not None else [()] * count
    phrases = phrases if phrases is not None else [()] * count
    largest = axes or sizes(prefixes, phrases)
    begin = np.full((count, largest.prefix), PAD, np.int32)
    holds = np.full((count, largest.phrases, largest.phrase), PAD, np.int32)
    for row, (prefix, wanted) in enumerate(zip(prefixes, phrases, strict=True)):
        begin[row, : len(prefix)] = prefix
        for i, phrase in enumerate(wanted[: largest.phrases]):
            holds[row, i, : len(phrase)] = phrase
    arrays = np.asarray(max_lengths, np.int32), begin, holds
    lengths, prefix, phrase = jax.device_put(arrays)  # without a compilation, unlike jnp.asarray
    return Request(lengths, prefix, phrase, keys)
