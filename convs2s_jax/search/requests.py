"""Requests: length bounds, prefixes, phrases and keys of each sentence, in addition to the search options for all."""

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax import Array

from convs2s_jax.core.config import record
from convs2s_jax.core.errors import shown
from convs2s_jax.core.rows import Tokens, pad_rows, round_up
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL
from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Key
from convs2s_jax.search.keys import checked_keys

_NO_IDS = np.zeros(0, np.int32)


@struct.dataclass
class Request:
    """The requests for B sentences. If nothing can meet a request, the sentence has no hypothesis.

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


def request(
    max_lengths: Sequence[int] | np.ndarray | Array,
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    keys: Key | np.ndarray | None = None,
    *,
    axes: Sizes | None = None,
) -> Request:
    """Build a request from lists of different lengths, padded to the given axes or to those of `sizes`.

    max_lengths [B] and keys [B] may be traced; for prefixes and phrases that are, build a `Request`. If there is a
    single key, the index of each sentence is folded into it.

    Raises:
      ValueError, TypeError: there is not one of each per sentence, or tokens are not integers.
    """
    lengths = max_lengths if isinstance(max_lengths, Array) else np.asarray(max_lengths)
    B = len(lengths)
    texts, wanted = as_required(prefixes, phrases, B)
    axes = axes or sizes(texts, wanted)
    shape = (axes.phrases, axes.phrase)
    rows = [pad_rows((phrase for phrase in each if len(phrase)), shape, end=False) for each in wanted]
    arrays = lengths, pad_rows(texts, (B, axes.prefix), end=False), np.reshape(rows, (B, *shape))
    # device_put without a compilation, unlike jnp.asarray
    longest, starts, required = jax.device_put([x.astype(np.int32) for x in arrays])
    return Request(longest, starts, required, None if keys is None else checked_keys(keys, B))


def as_ids(name: str, rows: Sequence[Tokens], sentence: int | None = None) -> list[np.ndarray]:
    """Convert sequences of token ids to arrays; raise ValueError for what is not a sequence of integers.

    Args:
      name: what a row is, for messages, such as "its prefix".
      rows: sequences of ids.
      sentence: index of the sentence that they belong to; None for one row per sentence.
    """
    found = [np.asarray(row) for row in rows]
    for i, row in enumerate(found):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise ValueError(
                f"sentence {i if sentence is None else sentence}: {name} is {shown(rows[i])}: expected a list of token "
                "ids, which are integers"
            )
    return [row if row.size else _NO_IDS for row in found]


def as_required(
    prefixes: Sequence[Tokens] | None, phrases: Sequence[Sequence[Tokens]] | None, count: int
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Convert the prefixes and phrases of `count` sentences, None for none, to arrays, as `as_ids` does.

    Raises:
      ValueError: there is not one of each per sentence, or one is not a list of ids or of phrases.
    """
    texts = as_ids("its prefix", [()] * count if prefixes is None else prefixes)
    wanted = [()] * count if phrases is None else phrases
    if len(texts) != count or len(wanted) != count:
        raise ValueError(
            f"got {len(texts)} prefixes and {len(wanted)} lists of phrases for {count} sentences: pass one each"
        )
    for i, each in enumerate(wanted):
        if not np.iterable(each):
            raise ValueError(f"sentence {i}: its phrases are {shown(each)}: expected a list of phrases")
    return texts, [as_ids("a phrase", each, i) for i, each in enumerate(wanted)]


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
    rule = "it never occurs in text" if token == BOS else "pass ids without the end symbol and padding"
    what = f": the vocabulary has ids from 0 to {vocabulary - 1}"
    if 0 <= token < vocabulary:
        what = f", which is {SPECIAL[token]}: {rule}"
    raise ValueError(f"sentence {i}: {name} contains id {token}{what}")
