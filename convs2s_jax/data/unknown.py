"""Statistics of unknown tokens: how many there are, and which are the most frequent."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from convs2s_jax.core.errors import printable, shortened
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
                found.update(unknown_in(texts[i], ids, vocabulary))
        named = f" ({commonest(found)})"
    return f"{100 * unknown:.2f} % of {what}{named}"


def commonest(units: Counter[str]) -> str:
    """Name the five most frequent units, for a message."""
    return f"most often {printable(' '.join(shortened(unit, 80) for unit, _ in units.most_common(5)))}"


def unknown_in(text: str, ids: Sequence[int] | np.ndarray, vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the unknown words or BPE pieces of a line, or characters with SentencePiece.

    It maps any run of unknown characters to one token. A model's piece that is missing from a list of pieces has known
    characters, so it is one unit.

    Args:
      text: the line.
      ids: its token ids.
      vocabulary: of the side.
    """
    if UNK not in ids:
        return ()
    surfaces, segmenter = [surface.strip() for surface in vocabulary.surfaces(text)], vocabulary.segmenter
    unknown = tuple(surface for surface, token in zip(surfaces, ids, strict=True) if token == UNK)
    if not isinstance(segmenter, ListedPieces):
        return unknown
    own = isinstance(segmenter, SentencePiece)
    return tuple(unit for one in unknown for unit in ([one] if not own and segmenter.is_piece(one) else one))
