"""Word-level differences between two texts."""

import difflib
from typing import NamedTuple

from convs2s_jax.translation import alignment


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
      text: the part.
      differs: whether it consists of words that the other text does not have at this position.
    """

    text: str
    differs: bool


def differences(text: str, other: str) -> list[Piece]:
    """Split a text into pieces by whether they differ. Words are those of `alignment.words`, matched by difflib."""
    spans = alignment.words(text)
    own, others = [text[b:e] for b, e in spans], [other[b:e] for b, e in alignment.words(other)]
    same: set[int] = set()
    for block in difflib.SequenceMatcher(None, own, others, autojunk=False).get_matching_blocks():
        same.update(range(block.a, block.a + block.size))
    pieces: list[Piece] = []
    done = 0
    for i, (begin, end) in enumerate(spans):
        # the space between two marked words is marked as well
        inside = i not in same and i > 0 and i - 1 not in same
        _add(pieces, text[done:begin], inside)
        _add(pieces, text[begin:end], i not in same)
        done = end
    _add(pieces, text[done:], False)
    return pieces


def _add(pieces: list[Piece], text: str, differs: bool) -> None:
    if pieces and pieces[-1].differs == differs:
        pieces[-1] = Piece(pieces[-1].text + text, differs)
    elif text:
        pieces.append(Piece(text, differs))
