"""Requests: length bounds, prefixes, phrases and keys per sentence, in addition to the search options for all."""

import jax
import numpy as np
from jax import Array

from convs2s_jax.core.errors import shown
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL
from convs2s_jax.nn import struct


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
            raise wrong_id(name, int(at[0]), int(rows[tuple(at)]), vocabulary)
        counts.append((rows, within.sum(axis=-1)))
    if isinstance(request.max_lengths, jax.core.Tracer):
        return
    lengths = np.asarray(request.max_lengths)
    check_lengths(lengths)
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


def check_lengths(lengths: np.ndarray | Array) -> None:
    """Reject maximum lengths that are negative or do not fit into 32 bits, unless they are on a device."""
    if isinstance(lengths, np.ndarray) and lengths.size and not 0 <= lengths.min() <= lengths.max() < 2**31:
        raise ValueError(f"max_lengths is {shown(lengths.tolist())}: use numbers of tokens from 0 to 2^31 - 1")


def wrong_id(name: str, sentence: int, token: int, vocabulary: int) -> ValueError:
    """Return the error for an id that `name` of a sentence cannot contain."""
    what = f"sentence {sentence}: {name} contains id {token}"
    if not 0 <= token < vocabulary:
        return ValueError(f"{what}: the vocabulary has ids from 0 to {vocabulary - 1}")
    rule = "it never occurs in text" if token == BOS else "pass ids without the end symbol and padding"
    return ValueError(f"{what}, which is {SPECIAL[token]}: {rule}")
