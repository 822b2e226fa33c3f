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
    prefixes: Sequence[Tokens] | Array | None = None,
    phrases: Sequence[Sequence[Tokens]] | Array | None = None,
    keys: Array | None = None,
    *,
    axes: Sizes | None = None,
) -> Request:
    """A request from lists of unequal lengths, in arrays of the given axes or as large as it takes.

    What is given as arrays of JAX, traced ones too, is taken as it is: see `Request` for the shapes.
    """
    count = len(max_lengths)
    texts: Sequence[Tokens] = () if prefixes is None or isinstance(prefixes, Array) else prefixes
    wanted: Sequence[Sequence[Tokens]] = () if phrases is None or isinstance(phrases, Array) else phrases
    for name, listed in (("prefixes", texts), ("lists of phrases", wanted)):
        if len(listed) not in (0, count):
            raise ValueError(f"there are {len(listed)} {name} for {count} sentences: each needs one, be it empty")
    largest = axes or sizes(texts, wanted)
    begin = np.full((count, largest.prefix), PAD, np.int32)
    holds = np.full((count, largest.phrases, largest.phrase), PAD, np.int32)
    for row, prefix in enumerate(texts):
        begin[row, : len(prefix)] = prefix
    for row, several in enumerate(wanted):
        for i, phrase in enumerate(several[: largest.phrases]):
            holds[row, i, : len(phrase)] = phrase
    made = prefixes if isinstance(prefixes, Array) else begin, phrases if isinstance(phrases, Array) else holds
    lengths = max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths)
    # device_put without a compilation, unlike jnp.asarray
    longest, begins, phrase_rows = jax.device_put((lengths.astype(np.int32), *made))
    asked = Request(longest, begins, phrase_rows, keys)
    for name, array, rank in (
        ("max_lengths", asked.max_lengths, 1),
        ("prefixes", asked.prefixes, 2),
        ("phrases", asked.phrases, 3),
    ):
        if array.ndim != rank or array.shape[0] != count:
            raise ValueError(f"{name} have shape {array.shape}: one row for each of {count} sentences, in {rank} axes")
    return asked
