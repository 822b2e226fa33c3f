"""Requests: length bounds, prefixes, phrases and keys per sentence, in addition to the search options for all."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.errors import shown
from convs2s_jax.core.rows import Tokens
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Key
from convs2s_jax.search import ids
from convs2s_jax.search.keys import checked_keys


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


def request(
    max_lengths: Sequence[int] | np.ndarray | Array,
    prefixes: Sequence[Tokens] | Array | None = None,
    phrases: Sequence[Sequence[Tokens]] | Array | None = None,
    keys: Key | np.ndarray | None = None,
    *,
    axes: ids.Sizes | None = None,
) -> Request:
    """Build a request from lists of different lengths, padded to the given axes or to those of `ids.sizes`.

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
    texts = ids.as_ids("its prefix", empty if prefixes is None or isinstance(prefixes, Array) else prefixes)
    wanted = ids.as_phrases(empty if phrases is None or isinstance(phrases, Array) else phrases)
    rows = ids.padded(texts, wanted, axes or ids.sizes(texts, wanted))
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
    _check_lengths(arrays["max_lengths"])
    drawn = None if keys is None else checked_keys(keys, B)
    # device_put without a compilation, unlike jnp.asarray
    return Request(**jax.device_put({name: x.astype(np.int32) for name, x in arrays.items()}), keys=drawn)


def check_request(request: Request, vocabulary: int, limit: int) -> None:
    """Reject arrays of a request that no hypothesis of `limit` symbols can meet, unless they are traced.

    Padding is allowed at the end only. Prefix and single phrases have to fit into the result; several phrases may
    overlap, so their lengths are not added up.
    """
    counts = []
    for name, array in (("its prefix", request.prefixes), ("a phrase", request.phrases)):
        rows = np.zeros((*array.shape[:-1], 0), np.int32) if isinstance(array, jax.core.Tracer) else np.asarray(array)
        within = np.cumsum(rows[..., ::-1] != PAD, axis=-1)[..., ::-1] > 0  # up to the last token
        wrong = within & ((rows < 0) | (rows >= vocabulary) | (rows == PAD) | (rows == EOS))
        for at in np.argwhere(wrong)[:1]:
            raise ids.wrong_id(name, int(at[0]), int(rows[tuple(at)]), vocabulary)
        counts.append((rows, within.sum(axis=-1)))
    if isinstance(request.max_lengths, jax.core.Tracer):
        return
    lengths = np.asarray(request.max_lengths)
    _check_lengths(lengths)
    (prefixes, P), (phrases, K) = counts
    for i, room in enumerate(np.minimum(lengths, limit - 1).tolist()):
        prefix = prefixes[i, : P[i]]
        needed = max((_joined(prefix, row[:k]) for row, k in zip(phrases[i], K[i], strict=True)), default=len(prefix))
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
