"""Statistics of unknown tokens: how many there are, and which are the most frequent."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from convs2s_jax.core.errors import printable
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data.pieces import ListedPieces, SentencePiece
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.tokens_on_disk import TokenizedText

MANY = 0.01
"""Fraction of a side's tokens above which the most frequent unknown characters or words are listed."""
_SAMPLE = 2000  # lines, evenly spaced
_CHUNK = 1 << 24  # tokens compared at once: they are a memory map


def share(tokens: TokenizedText) -> float:
    """Return the fraction of unknown tokens, from 0 to 1."""
    total = len(tokens.tokens)
    parts = (tokens.tokens[first : first + _CHUNK] for first in range(0, total, _CHUNK))
    return sum(np.count_nonzero(part == UNK) for part in parts) / max(1, total)


def describe(tokens: TokenizedText, texts: Sequence[str], vocabulary: Vocabulary, what: str) -> str:
    """Describe the fraction of unknown tokens of a side, with the most frequent ones if it is large.

    These are words or BPE pieces in a sample of lines; with SentencePiece, characters.

    Args:
      tokens: token ids of `texts`.
      texts: the lines.
      vocabulary: of the side.
      what: what is counted, such as "source tokens".
    """
    unknown, named = share(tokens), ""
    if unknown > MANY:
        found = Counter[str]()
        for i in range(0, len(tokens), max(1, -(-len(tokens) // _SAMPLE))):
            if UNK in (ids := tokens[i]):
                found.update(_units(texts[i], ids, vocabulary)[0])
        commonest = " ".join(word for word, _ in found.most_common(5))
        named = f" (most often {printable(commonest)})"
    return f"{100 * unknown:.2f} % of {what}{named}"


def is_mostly_unknown(text: str, ids: Sequence[int] | np.ndarray, vocabulary: Vocabulary) -> bool:
    """Whether at least 3 and more than half of a line's words, BPE pieces or characters are unknown.

    Characters count with SentencePiece, because it maps any run of unknown characters to one token.

    Args:
      text: the line.
      ids: its token ids.
      vocabulary: of the side.
    """
    if UNK not in ids:
        return False
    unknown, total = _units(text, ids, vocabulary)
    return len(unknown) >= 3 and 2 * len(unknown) > total


def _units(text: str, ids: Sequence[int] | np.ndarray, vocabulary: Vocabulary) -> tuple[Sequence[str], int]:
    """Return the unknown words or pieces of a line and the total number; with SentencePiece, of characters.

    A model's piece that is missing from the list has known characters, so it counts as one.
    """
    surfaces, segmenter = [surface.strip() for surface in vocabulary.surfaces(text)], vocabulary.segmenter
    unknown = [surface for surface, token in zip(surfaces, ids, strict=True) if token == UNK]
    if not isinstance(segmenter, ListedPieces):
        return unknown, len(surfaces)
    own = isinstance(segmenter, SentencePiece)
    units = [unit for one in unknown for unit in ([one] if not own and segmenter.is_piece(one) else one)]
    return units, len("".join(surfaces))
