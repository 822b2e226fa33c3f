"""Requests: the bounds, prefixes and phrases of each single sentence, in addition to the options for all."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.errors import shown
from convs2s_jax.core.rows import Tokens, pad_rows, round_up
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL
from convs2s_jax.nn import struct
from convs2s_jax.search.buckets import Sizes
from convs2s_jax.search.keys import checked

_NO_IDS = np.zeros(0, np.int32)


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
    [B, C, K], keys [B]. For one key, the number of the sentence is folded into it.

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
    prefix_rows = prefixes if isinstance(prefixes, Array) else pad_rows(texts, (count, largest.prefix), end=False)
    phrase_rows = phrases if isinstance(phrases, Array) else _phrase_rows(wanted, largest)
    for name, array, rank in (("max_lengths", lengths, 1), ("prefixes", prefix_rows, 2), ("phrases", phrase_rows, 3)):
        if array.ndim != rank or array.shape[0] != count:
            raise ValueError(f"{name} have shape {array.shape}: one row for each of {count} sentences, in {rank} axes")
        if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} have dtype {array.dtype}: lengths and token ids are integers, such as int32")
    drawn = None if keys is None else checked(keys, count)
    # device_put without a compilation, unlike jnp.asarray
    lengths, prefix_rows, phrase_rows = jax.device_put((lengths.astype(np.int32), prefix_rows, phrase_rows))
    return Request(max_lengths=lengths, prefixes=prefix_rows, phrases=phrase_rows, keys=drawn)


def as_ids(name: str, rows: Sequence[Tokens], sentences: Sequence[int] | None = None) -> list[np.ndarray]:
    """Token ids as arrays.

    Args:
      name: what a row is of its sentence, for messages.
      rows: a sequence of ids each.
      sentences: numbers of the sentences that rows belong to; None for a row each.

    Raises:
      ValueError: a row is no sequence of integers.
    """
    found = [np.asarray(row) for row in rows]
    for i, row in enumerate(found):
        if row.ndim == 1 and row.dtype.kind in "fO" and all(isinstance(one, Integral) for one in rows[i]):
            found[i] = row = row.astype(np.int64)  # integers of several widths, or of Python
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            where = i if sentences is None else sentences[i]
            raise ValueError(
                f"sentence {where}: {name} is {shown(rows[i])}: give a list of token ids, which are integers"
            )
    return [row if row.size else _NO_IDS for row in found]


def check_ids(
    name: str,
    rows: Sequence[np.ndarray],
    vocabulary: int,
    sentences: Sequence[int] | None = None,
    *,
    refused: Sequence[int] = (PAD, EOS),
) -> None:
    """Refuse ids that a sequence cannot have, in one pass over all rows.

    Args:
      name, sentences: as in `as_ids`.
      rows: as it returns them.
      vocabulary: V.
      refused: special symbols that stand for no token of a text.

    Raises:
      ValueError: an id outside the vocabulary or among `refused`.
    """
    ids = np.concatenate([_NO_IDS, *rows])
    wrong = (ids < 0) | (ids >= vocabulary)
    for symbol in refused:
        wrong |= ids == symbol
    if not wrong.any():
        return
    at = int(wrong.argmax())
    row = int(np.searchsorted(np.cumsum([len(row) for row in rows]), at, side="right"))
    where, token = row if sentences is None else sentences[row], int(ids[at])
    if not 0 <= token < vocabulary:
        raise ValueError(f"sentence {where}: {name} has id {token}: the vocabulary has 0 to {vocabulary - 1}")
    rule = "no text has it" if token == BOS else "give ids without the end symbol and padding"
    raise ValueError(f"sentence {where}: {name} has id {token}, which is {SPECIAL[token]}: {rule}")


def check_required_ids(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]], vocabulary: int) -> None:
    """Refuse tokens of each sentence's prefix and phrases that no hypothesis can have.

    Raises:
      ValueError: no integers, or an id that is outside the vocabulary, PAD or EOS.
    """
    check_ids("its prefix", as_ids("its prefix", prefixes), vocabulary)
    sentences = [i for i, wanted in enumerate(phrases) for _ in wanted]
    rows = as_ids("a phrase", [phrase for wanted in phrases for phrase in wanted], sentences)
    check_ids("a phrase", rows, vocabulary, sentences)


def check_request(request: Request, vocabulary: int) -> None:
    """`check_required_ids` of a request, as far as its arrays are not traced; padding may stand at the end only."""
    rows = len(request.max_lengths)
    prefixes, phrases = (
        np.zeros((rows, *array.shape[1:-1], 0), np.int32) if isinstance(array, jax.core.Tracer) else np.asarray(array)
        for array in (request.prefixes, request.phrases)
    )
    check_required_ids(_unpadded(prefixes), [_unpadded(each) for each in phrases], vocabulary)


def _unpadded(rows: np.ndarray) -> list[np.ndarray]:
    """Each row without the padding at its end."""
    return [row[: int(np.max(np.flatnonzero(row != PAD), initial=-1)) + 1] for row in rows]


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
