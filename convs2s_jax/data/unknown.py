"""Tokens that a vocabulary does not know: how many there are, and which are the commonest."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from convs2s_jax.core.tokens import UNK
from convs2s_jax.data.pieces import ListedPieces
from convs2s_jax.data.sentencepiece import SentencePiece
from convs2s_jax.data.store import TokenStore
from convs2s_jax.data.vocabulary import Vocabulary

MANY = 0.01
"""Share of a side's tokens above which the commonest unknown characters or words are named."""
_SAMPLE = 2000  # lines, evenly spaced
_CHUNK = 1 << 24  # tokens compared at once: the store is a memory map


def share(store: TokenStore) -> float:
    """Share of the tokens that are unknown, from 0 to 1."""
    total = len(store.tokens)
    parts = (store.tokens[first : first + _CHUNK] for first in range(0, total, _CHUNK))
    return sum(np.count_nonzero(part == UNK) for part in parts) / max(1, total)


def commonest(store: TokenStore, texts: Sequence[str], vocabulary: Vocabulary, *, count: int = 5) -> list[str]:
    """The commonest unknown words in a sample of lines, or pieces of codes; with SentencePiece, unknown characters.

    Args:
      store: token ids of `texts`.
      texts: the lines.
      vocabulary: of the side.
      count: most words or characters to name.
    """
    found = Counter[str]()
    for i in range(0, len(store), max(1, -(-len(store) // _SAMPLE))):
        if UNK in (ids := store[i]):
            found.update(_units(texts[i], ids, vocabulary)[0])
    return [word for word, _ in found.most_common(count)]


def describe(store: TokenStore, texts: Sequence[str], vocabulary: Vocabulary, side: str) -> str:
    """The share of unknown tokens of a side, "source" or "target", for the user; with the commonest if there are many.

    Other arguments as of `commonest`.
    """
    unknown = share(store)
    named = " ".join(commonest(store, texts, vocabulary)) if unknown > MANY else ""
    return f"{100 * unknown:.2f} % of {side} tokens" + (f" (most often {named})" if named else "")


def is_mostly_unknown(text: str, ids: Sequence[int] | np.ndarray, vocabulary: Vocabulary) -> bool:
    """Whether more than half of a line's words, or pieces of codes, and at least 3 are unknown; or of its characters.

    With SentencePiece characters count, since it makes one token of any number of unknown ones.

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
    """The unknown words or pieces of a line, and the number of all; of SentencePiece the characters.

    A piece of a model that is not in its list has known characters: it counts as one.
    """
    surfaces = vocabulary.surfaces(text)
    unknown = [surface for surface, token in zip(surfaces, ids, strict=True) if token == UNK]
    if isinstance(vocabulary, SentencePiece | ListedPieces):
        units: list[str] = []
        for one in unknown:
            whole = isinstance(vocabulary, ListedPieces) and vocabulary.is_piece(one)
            units += [one.strip()] if whole else one.strip()
        return units, len("".join(surface.strip() for surface in surfaces))
    return [surface.strip() for surface in unknown], len(surfaces)
