"""Requests and token ids as a caller passes them, in lists of different lengths: converted, checked, and padded."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.config import record
from convs2s_jax.core.errors import shown
from convs2s_jax.core.rows import Tokens, pad_rows, round_up
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn.types import Key
from convs2s_jax.search.keys import checked_keys
from convs2s_jax.search.request import Request, check_lengths, wrong_id

_NO_IDS = np.zeros(0, np.int32)


@record(kw_only=False)
class Sizes:
    """Sizes of the axes of a request.

    Attributes:
      prefix: P, tokens of a prefix.
      phrases: C, phrases of a sentence.
      phrase: K, tokens of a phrase.
    """

    prefix: int
    phrases: int
    phrase: int


NO_AXES = Sizes(0, 0, 0)
"""The axes of requests without prefixes and phrases."""


def sizes(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]]) -> Sizes:
    """Return axes large enough for all of them. P is a multiple of 8, which limits the number of compilations."""
    phrase = max((len(phrase) for wanted in phrases for phrase in wanted), default=0)
    most = max(map(len, phrases), default=0) if phrase else 0
    return Sizes(prefix=round_up(max(map(len, prefixes), default=0), 8), phrases=most, phrase=phrase)


def padded(
    prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]], axes: Sizes
) -> tuple[np.ndarray, np.ndarray]:
    """Return prefixes [B, P] and phrases [B, C, K], padded."""
    B, shape = len(prefixes), (axes.phrases, axes.phrase)
    rows = [pad_rows((phrase for phrase in each if len(phrase)), shape, end=False) for each in phrases]
    return pad_rows(prefixes, (B, axes.prefix), end=False), np.reshape(rows, (B, *shape)).astype(np.int32)


def request(
    max_lengths: Sequence[int] | np.ndarray | Array,
    prefixes: Sequence[Tokens] | Array | None = None,
    phrases: Sequence[Sequence[Tokens]] | Array | None = None,
    keys: Key | np.ndarray | None = None,
    *,
    axes: Sizes | None = None,
) -> Request:
    """Build a request from lists of different lengths, padded to the given axes or to those of `sizes`.

    JAX arrays, including traced ones, are used as they are: max_lengths [B], prefixes [B, P], phrases [B, C, K],
    keys [B]. If there is a single key, the index of each sentence is folded into it.

    Raises:
      ValueError, TypeError: there is not one of each per sentence, lengths and tokens are not integers, or a length is
        negative or does not fit into 32 bits.
    """
    if not np.ndim(max_lengths):
        raise ValueError(f"max_lengths is {max_lengths}: expected one length per sentence")
    B = len(max_lengths)
    for name, given in (("prefixes", prefixes), ("lists of phrases", phrases)):
        if given is not None and not isinstance(given, Array) and len(given) != B:
            raise ValueError(f"got {len(given)} {name} for {B} sentences: pass one per sentence, which may be empty")
    empty = [()] * B
    texts = as_ids("its prefix", empty if prefixes is None or isinstance(prefixes, Array) else prefixes)
    wanted = as_phrases(empty if phrases is None or isinstance(phrases, Array) else phrases)
    rows = padded(texts, wanted, axes or sizes(texts, wanted))
    arrays = {
        "max_lengths": max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths),
        "prefixes": prefixes if isinstance(prefixes, Array) else rows[0],
        "phrases": phrases if isinstance(phrases, Array) else rows[1],
    }
    for rank, (name, array) in enumerate(arrays.items(), 1):
        if array.ndim != rank or array.shape[0] != B:
            raise ValueError(f"{name} has shape {array.shape}: expected {rank} axes with one row per sentence, {B}")
        if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} has dtype {array.dtype}: expected integers, such as int32")
    check_lengths(arrays["max_lengths"])
    drawn = None if keys is None else checked_keys(keys, B)
    # device_put without a compilation, unlike jnp.asarray
    return Request(**jax.device_put({name: x.astype(np.int32) for name, x in arrays.items()}), keys=drawn)


def is_list(x: Any) -> bool:
    """Return whether this has elements: a sequence, or an array with axes."""
    return hasattr(x, "__len__") and getattr(x, "ndim", 1) > 0


def as_ids(name: str, rows: Sequence[Tokens], sentence: int | None = None) -> list[np.ndarray]:
    """Convert sequences of token ids to arrays; raise ValueError for what is not a sequence of integers.

    Args:
      name: what a row is, for messages, such as "its prefix".
      rows: sequences of ids.
      sentence: index of the sentence that they belong to; None for one row per sentence.
    """
    found = [np.asarray(row) for row in rows]
    for i, row in enumerate(found):
        if row.ndim == 1 and row.dtype.kind in "fO" and all(isinstance(one, Integral) for one in rows[i]):
            found[i] = row = row.astype(np.int64)  # integers of several widths, or of Python
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise ValueError(
                f"sentence {i if sentence is None else sentence}: {name} is {shown(rows[i])}: expected a list of token "
                "ids, which are integers"
            )
    return [row if row.size else _NO_IDS for row in found]


def as_phrases(phrases: Sequence[Sequence[Tokens]]) -> list[list[np.ndarray]]:
    """Convert the phrases of each sentence to arrays; raise ValueError for what is not a list of such sequences."""
    for i, wanted in enumerate(phrases):
        if not is_list(wanted):
            raise ValueError(f"sentence {i}: its phrases are {shown(wanted)}: expected a list of phrases")
    return [as_ids("a phrase", wanted, i) for i, wanted in enumerate(phrases)]


def check_ids(name: str, rows: Iterable[tuple[int, np.ndarray]], vocabulary: int, *refused: int) -> None:
    """Reject ids that a sequence cannot contain: those outside the vocabulary, PAD, EOS, and `refused` ones.

    Args:
      name: what a row is, for messages.
      rows: for each row, the index of its sentence, and what `as_ids` returns.
      vocabulary: V.
      refused: another special symbol that is not allowed.
    """
    numbered = list(rows)
    ids = np.concatenate([_NO_IDS, *(row for _, row in numbered)])  # all rows in one pass
    wrong = (ids < 0) | (ids >= vocabulary) | np.isin(ids, (PAD, EOS, *refused))
    if not wrong.any():
        return
    at = int(wrong.argmax())
    i, token = [i for i, row in numbered for _ in row][at], int(ids[at])
    raise wrong_id(name, i, token, vocabulary)


def check_required(prefixes: Sequence[np.ndarray], phrases: Sequence[Sequence[np.ndarray]], vocabulary: int) -> None:
    """Reject prefixes and phrases, from `as_ids` and `as_phrases`, with ids that no hypothesis can contain."""
    check_ids("its prefix", enumerate(prefixes), vocabulary)
    check_ids("a phrase", ((i, phrase) for i, wanted in enumerate(phrases) for phrase in wanted), vocabulary)
