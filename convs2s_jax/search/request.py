"""Requests: length bounds, prefixes and phrases per sentence, in addition to the search options for all."""

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
      max_lengths: [B] int32, maximum number of tokens before the end symbol.
      prefixes: [B, P] int32, tokens that the hypotheses begin with, then PAD. P may be 0.
      phrases: [B, C, K] int32, token sequences that must occur in the hypotheses, each followed by PAD; empty ones
        require nothing. C may be 0. Prefix and phrases, one after the other, must fit into the maximum length.
      keys: [B] random keys, for sampling only.
    """

    max_lengths: Array
    prefixes: Array
    phrases: Array
    keys: Array | None = None


def is_list(x: Any) -> bool:
    """Return whether this has elements: a sequence, or an array with axes."""
    return hasattr(x, "__len__") and getattr(x, "ndim", 1) > 0


def as_phrases(phrases: Sequence[Sequence[Tokens]]) -> list[list[np.ndarray]]:
    """Convert the phrases of each sentence to arrays.

    Raises:
      ValueError: they are not lists of sequences of integers.
    """
    for i, wanted in enumerate(phrases):
        if not is_list(wanted):
            raise ValueError(f"sentence {i}: its phrases are {shown(wanted)}: expected a list of phrases")
    return [as_ids("a phrase", wanted, [i] * len(wanted)) for i, wanted in enumerate(phrases)]


def sizes(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]]) -> Sizes:
    """Return axes large enough for all of them. P is a multiple of 8, which limits the number of compilations."""
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
    """Build a request from lists of different lengths, padded to the given axes or to those of `sizes`.

    JAX arrays, including traced ones, are used as they are: max_lengths [B], prefixes [B, P], phrases [B, C, K],
    keys [B]. If there is a single key, the index of each sentence is folded into it.

    Raises:
      ValueError, TypeError: there is not one of each per sentence, lengths and tokens are not integers, or a length is
        negative or does not fit into 32 bits.
    """
    if not np.ndim(max_lengths):
        raise ValueError(f"max_lengths is {max_lengths}: expected one length per sentence")
    count = len(max_lengths)
    texts = as_ids("its prefix", _listed("prefixes", prefixes, count))
    wanted = as_phrases(_listed("lists of phrases", phrases, count))
    largest = axes or sizes(texts, wanted)
    lengths = max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths)
    prefix_rows = prefixes if isinstance(prefixes, Array) else pad_rows(texts, (count, largest.prefix), end=False)
    phrase_rows = phrases if isinstance(phrases, Array) else _phrase_rows(wanted, largest)
    for name, array, rank in (("max_lengths", lengths, 1), ("prefixes", prefix_rows, 2), ("phrases", phrase_rows, 3)):
        if array.ndim != rank or array.shape[0] != count:
            raise ValueError(f"{name} has shape {array.shape}: expected {rank} axes with one row per sentence, {count}")
        if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} has dtype {array.dtype}: expected integers, such as int32")
    if isinstance(lengths, np.ndarray):
        check_lengths(lengths)
    drawn = None if keys is None else checked(keys, count)
    # device_put without a compilation, unlike jnp.asarray
    lengths, prefix_rows, phrase_rows = jax.device_put((lengths.astype(np.int32), prefix_rows, phrase_rows))
    return Request(max_lengths=lengths, prefixes=prefix_rows, phrases=phrase_rows, keys=drawn)


def as_ids(name: str, rows: Sequence[Tokens], sentences: Sequence[int] | None = None) -> list[np.ndarray]:
    """Convert sequences of token ids to arrays.

    Args:
      name: what a row is, for messages, such as "its prefix".
      rows: sequences of ids.
      sentences: index of the sentence that each row belongs to; None for one row per sentence.

    Raises:
      ValueError: a row is not a sequence of integers.
    """
    found = [np.asarray(row) for row in rows]
    for i, row in enumerate(found):
        if row.ndim == 1 and row.dtype.kind in "fO" and all(isinstance(one, Integral) for one in rows[i]):
            found[i] = row = row.astype(np.int64)  # integers of several widths, or of Python
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            where = i if sentences is None else sentences[i]
            raise ValueError(
                f"sentence {where}: {name} is {shown(rows[i])}: expected a list of token ids, which are integers"
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
    """Reject ids that a sequence cannot contain, in one pass over all rows.

    Args:
      name, sentences: as in `as_ids`.
      rows: as `as_ids` returns them.
      vocabulary: V.
      refused: special symbols that a sequence must not contain.

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
        raise ValueError(
            f"sentence {where}: {name} contains id {token}: the vocabulary has ids from 0 to {vocabulary - 1}"
        )
    rule = "it never occurs in text" if token == BOS else "pass ids without the end symbol and padding"
    raise ValueError(f"sentence {where}: {name} contains id {token}, which is {SPECIAL[token]}: {rule}")


def check_required_ids(
    prefixes: Sequence[np.ndarray], phrases: Sequence[Sequence[np.ndarray]], vocabulary: int
) -> None:
    """Reject prefixes and phrases, from `as_ids` and `as_phrases`, with tokens that no hypothesis can contain.

    Raises:
      ValueError: an id that is outside the vocabulary, PAD or EOS.
    """
    check_ids("its prefix", prefixes, vocabulary)
    sentences = [i for i, wanted in enumerate(phrases) for _ in wanted]
    check_ids("a phrase", [phrase for wanted in phrases for phrase in wanted], vocabulary, sentences)


def check_request(request: Request, vocabulary: int, limit: int) -> None:
    """`check_required_ids` for those arrays of a request that are not traced. Padding is allowed at the end only.

    Also reject maximum lengths below 0, and prefixes and single phrases that do not fit into a result of `limit`
    symbols. Several phrases may overlap, so their lengths are not added up.
    """
    rows = len(request.max_lengths)
    prefixes, phrases = (
        np.zeros((rows, *array.shape[1:-1], 0), np.int32) if isinstance(array, jax.core.Tracer) else np.asarray(array)
        for array in (request.prefixes, request.phrases)
    )
    required = as_ids("its prefix", _unpadded(prefixes)), as_phrases([_unpadded(each) for each in phrases])
    check_required_ids(*required, vocabulary)
    if isinstance(request.max_lengths, jax.core.Tracer):
        return
    lengths = np.asarray(request.max_lengths)
    check_lengths(lengths)
    for i, (prefix, wanted, room) in enumerate(zip(*required, np.minimum(lengths, limit - 1).tolist(), strict=True)):
        needed = max((_joined(prefix, phrase) for phrase in wanted), default=len(prefix))
        if needed > room:
            what = "its prefix has" if len(prefix) > room else "its prefix and a phrase have"
            raise ValueError(
                f"sentence {i}: {what} {needed} tokens, but its result has at most {room} before the end symbol"
            )


def _joined(prefix: np.ndarray, phrase: np.ndarray) -> int:
    """Return the length of the shortest sequence that begins with a prefix and contains a phrase."""
    P, K = len(prefix), len(phrase)
    ends = (at for at in range(P + 1) if np.array_equal(prefix[at : at + K], phrase[: P - at]))
    return max(P, next(ends) + K)


def check_lengths(lengths: np.ndarray) -> None:
    """Reject maximum lengths that are negative or do not fit into 32 bits."""
    if lengths.size and not 0 <= lengths.min() <= lengths.max() < 2**31:
        raise ValueError(f"max_lengths is {shown(lengths.tolist())}: use numbers of tokens from 0 to 2^31 - 1")


def _unpadded(rows: np.ndarray) -> list[np.ndarray]:
    """Return each row without the padding at its end."""
    return [row[: int(np.max(np.flatnonzero(row != PAD), initial=-1)) + 1] for row in rows]


def _listed(name: str, given: Sequence[Any] | Array | None, count: int) -> Sequence[Any]:
    """Return the given list, with one item per sentence; empty items if it is an array or None."""
    if given is None or isinstance(given, Array):
        return [()] * count
    if len(given) != count:
        raise ValueError(f"got {len(given)} {name} for {count} sentences: pass one per sentence, which may be empty")
    return given


def _phrase_rows(wanted: Sequence[Sequence[Tokens]], axes: Sizes) -> np.ndarray:
    """Pad the phrases of each sentence to [B, C, K]."""
    rows = [pad_rows((p for p in each if len(p)), (axes.phrases, axes.phrase), end=False) for each in wanted]
    return np.reshape(rows, (len(wanted), axes.phrases, axes.phrase)).astype(np.int32)
