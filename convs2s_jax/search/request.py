"""Requests: length bounds, prefixes, phrases and keys per sentence, in addition to the search options for all."""

import dataclasses
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
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL
from convs2s_jax.nn import struct
from convs2s_jax.nn.dropout import threefry
from convs2s_jax.nn.types import Key

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


def sizes(prefixes: Sequence[Tokens], phrases: Sequence[Sequence[Tokens]]) -> Sizes:
    """Return axes large enough for all of them. P is a multiple of 8, which limits the number of compilations."""
    phrase = max((len(phrase) for wanted in phrases for phrase in wanted), default=0)
    most = max(map(len, phrases), default=0) if phrase else 0
    return Sizes(prefix=round_up(max(map(len, prefixes), default=0), 8), phrases=most, phrase=phrase)


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
    B = len(max_lengths)
    texts = as_ids("its prefix", _listed("prefixes", prefixes, B))
    wanted = as_phrases(_listed("lists of phrases", phrases, B))
    P, C, K = dataclasses.astuple(axes or sizes(texts, wanted))
    padded = [pad_rows((phrase for phrase in each if len(phrase)), (C, K), end=False) for each in wanted]
    arrays = {
        "max_lengths": max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths),
        "prefixes": prefixes if isinstance(prefixes, Array) else pad_rows(texts, (B, P), end=False),
        "phrases": phrases if isinstance(phrases, Array) else np.reshape(padded, (B, C, K)),
    }
    for rank, (name, array) in enumerate(arrays.items(), 1):
        if array.ndim != rank or array.shape[0] != B:
            raise ValueError(f"{name} has shape {array.shape}: expected {rank} axes with one row per sentence, {B}")
        if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} has dtype {array.dtype}: expected integers, such as int32")
    _check_lengths(arrays["max_lengths"])
    drawn = None if keys is None else checked_keys(keys, B)
    # device_put without a compilation, unlike jnp.asarray
    return Request(**jax.device_put({name: x.astype(np.int32) for name, x in arrays.items()}), keys=drawn)


def _listed(name: str, given: Sequence[Any] | Array | None, count: int) -> Sequence[Any]:
    """Return the given list, with one item per sentence; empty items if it is an array or None."""
    if given is None or isinstance(given, Array):
        return [()] * count
    if len(given) != count:
        raise ValueError(f"got {len(given)} {name} for {count} sentences: pass one per sentence, which may be empty")
    return given


def checked_keys(key: Key | np.ndarray | None, count: int) -> Key:
    """Return keys [count] of JAX's default generator (`nn.dropout.threefry`), one per sentence.

    These are the given ones, or a single key with the index of each sentence folded into it.

    Args:
      key: one or several from `jax.random.key`, which may be traced, or raw ones from `jax.random.PRNGKey`.
      count: number of sentences.

    Raises:
      ValueError: there is no key, or not one per sentence.
      TypeError: `key` is not a random key.
    """
    if key is None:
        raise ValueError("sampling needs a random key, but key is None: pass key=jax.random.key(0), for example")
    found = threefry(jax.device_put(key) if isinstance(key, np.ndarray) else key)
    if found.shape not in ((), (count,)):
        raise ValueError(f"key has shape {found.shape}: pass a single key, or one for each of {count} sentences")
    return found if found.ndim else jax.vmap(jax.random.fold_in, (None, 0))(found, np.arange(count, dtype=np.uint32))


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
    if not 0 <= token < vocabulary:
        raise ValueError(f"sentence {i}: {name} contains id {token}: the vocabulary has ids from 0 to {vocabulary - 1}")
    rule = "it never occurs in text" if token == BOS else "pass ids without the end symbol and padding"
    raise ValueError(f"sentence {i}: {name} contains id {token}, which is {SPECIAL[token]}: {rule}")


def check_required(prefixes: Sequence[np.ndarray], phrases: Sequence[Sequence[np.ndarray]], vocabulary: int) -> None:
    """Reject prefixes and phrases, from `as_ids` and `as_phrases`, with ids that no hypothesis can contain."""
    check_ids("its prefix", enumerate(prefixes), vocabulary)
    check_ids("a phrase", ((i, phrase) for i, wanted in enumerate(phrases) for phrase in wanted), vocabulary)


def check_request(request: Request, vocabulary: int, limit: int) -> None:
    """`check_required` for those arrays of a request that are not traced. Padding is allowed at the end only.

    Also reject maximum lengths below 0, and prefixes and single phrases that do not fit into a result of `limit`
    symbols. Several phrases may overlap, so their lengths are not added up.
    """
    rows = len(request.max_lengths)
    prefixes, phrases = (
        np.zeros((rows, *array.shape[1:-1], 0), np.int32) if isinstance(array, jax.core.Tracer) else np.asarray(array)
        for array in (request.prefixes, request.phrases)
    )
    required = _unpadded(prefixes), [_unpadded(each) for each in phrases]
    check_required(*required, vocabulary)
    if isinstance(request.max_lengths, jax.core.Tracer):
        return
    lengths = np.asarray(request.max_lengths)
    _check_lengths(lengths)
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


def _check_lengths(lengths: np.ndarray | Array) -> None:
    """Reject maximum lengths that are negative or do not fit into 32 bits, unless they are on a device."""
    if isinstance(lengths, np.ndarray) and lengths.size and not 0 <= lengths.min() <= lengths.max() < 2**31:
        raise ValueError(f"max_lengths is {shown(lengths.tolist())}: use numbers of tokens from 0 to 2^31 - 1")


def _unpadded(rows: np.ndarray) -> list[np.ndarray]:
    """Return each row without the padding at its end."""
    return [row[: int(np.max(np.flatnonzero(row != PAD), initial=-1)) + 1] for row in rows]
