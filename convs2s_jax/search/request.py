"""Requests: the bounds, prefixes and phrases of each single sentence, in addition to the options for all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.rows import Tokens, pad_rows, round_up
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct


@struct.dataclass
class Request:
    """The requests for B sentences.

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
    """Axes of a request.

    Attributes:
      prefix: P, tokens of a prefix.
      phrases: C, phrases of a sentence.
      phrase: K, tokens of a phrase.
    """

    prefix: int
    phrases: int
    phrase: int


NO_AXES = Sizes(0, 0, 0)
"""Of requests without prefixes and phrases."""


def at_least(axes: Sizes, least: Sizes) -> Sizes:
    """Axes that are as large as both."""
    return Sizes(*map(max, axes, least))


def sizes(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]]) -> Sizes:
    """Axes that hold them all: prefixes in multiples of 8, so that they do not multiply compilations."""
    phrase = max((len(phrase) for wanted in phrases for phrase in wanted), default=0)
    return Sizes(
        prefix=round_up(max((len(prefix) for prefix in prefixes), default=0), 8),
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

    What is given as arrays of JAX, traced ones too, is taken as it is: max_lengths [B], prefixes [B, P], phrases
    [B, C, K], keys [B].

    Raises:
      ValueError, TypeError: not one of each for every sentence, or something else than integers.
    """
    if not np.ndim(max_lengths):
        raise ValueError(f"max_lengths is {max_lengths}: expected a length for each sentence")
    count = len(max_lengths)
    texts = _listed("prefixes", prefixes, count)
    wanted = _listed("lists of phrases", phrases, count)
    largest = axes or sizes(texts, wanted)
    lengths = max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths)
    begins = prefixes if isinstance(prefixes, Array) else pad_rows(texts, (count, largest.prefix), end=False)
    holds = phrases if isinstance(phrases, Array) else _phrase_rows(wanted, largest)
    for name, array, rank in (("max_lengths", lengths, 1), ("prefixes", begins, 2), ("phrases", holds, 3)):
        if array.ndim != rank or array.shape[0] != count:
            raise ValueError(f"{name} have shape {array.shape}: one row for each of {count} sentences, in {rank} axes")
        if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} have dtype {array.dtype}: lengths and token ids are integers, such as int32")
    if keys is not None and np.shape(keys)[:1] != (count,):
        raise ValueError(f"keys have shape {np.shape(keys)}: one key for each of {count} sentences")
    # device_put without a compilation, unlike jnp.asarray
    lengths, begins, holds = jax.device_put((lengths.astype(np.int32), begins, holds))
    return Request(max_lengths=lengths, prefixes=begins, phrases=holds, keys=keys)


def check_ids(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]], vocabulary: int) -> None:
    """Refuse tokens of each sentence's prefix and phrases that no hypothesis can have.

    Raises:
      ValueError: an id outside the vocabulary, or PAD or EOS in a phrase.
    """
    for i, (prefix, wanted) in enumerate(zip(prefixes, phrases, strict=True)):
        for name, given in (("its prefix", [prefix]), ("a phrase", wanted)):
            for token in (int(token) for tokens in given for token in tokens):
                if not 0 <= token < vocabulary:
                    raise ValueError(f"sentence {i}: {name} has id {token}: the vocabulary has 0 to {vocabulary - 1}")
                if name == "a phrase" and token in (PAD, EOS):
                    raise ValueError(f"sentence {i}: a phrase has id {token}, which is padding or ends a sentence")


def check_request(request: Request, vocabulary: int) -> None:
    """`check_ids` of a request, as far as its arrays are not traced."""
    rows = len(request.max_lengths)
    prefixes, phrases = (
        [()] * rows if isinstance(array, jax.core.Tracer) else np.asarray(array).tolist()
        for array in (request.prefixes, request.phrases)
    )
    real = [[token for token in row if token != PAD] for row in prefixes]
    check_ids(real, [[[t for t in phrase if t != PAD] for phrase in each] for each in phrases], vocabulary)


def _listed(name: str, given: Sequence[Any] | Array | None, count: int) -> Sequence[Any]:
    """What is given as a list, one item for each sentence; empty ones where it is an array or not given."""
    if given is None or isinstance(given, Array):
        return [()] * count
    if len(given) != count:
        raise ValueError(f"there are {len(given)} {name} for {count} sentences: each needs one, be it empty")
    return given


def _phrase_rows(wanted: Sequence[Sequence[Tokens]], axes: Sizes) -> np.ndarray:
    """[B, C, K]."""
    rows = [pad_rows((p for p in each if len(p)), (axes.phrases, axes.phrase), end=False) for each in wanted]
    return np.reshape(rows, (len(wanted), axes.phrases, axes.phrase)).astype(np.int32)
