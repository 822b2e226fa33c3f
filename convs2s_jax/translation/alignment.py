"""Alignment of target tokens to source tokens by attention, and replacement of unknown words.

Attention [T + 1, S + 1] comes from a `Candidate`: no padding, end symbols last. Both end symbols are dropped here,
leaving source tokens 0 to S - 1 and target tokens 0 to T - 1.
"""

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

UNKNOWN = "\ufdd2"
"""Placeholder for an unknown token in text, a code point that Unicode reserves for internal use."""

# Scripts written without spaces between words.
_UNSPACED = ("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")

Span = tuple[int, int]


def pairs(attention: np.ndarray | None) -> tuple[tuple[int, int], ...]:
    """Return pairs (source token, target token): the most attended source token of each target token, in order.

    End symbols are excluded. Ties go to the first source token. A decoder without attention has zero weights, and its
    tokens have no pair. `attention` is [T + 1, S + 1], None without attention, or empty for an empty source.
    """
    if attention is None or min(attention.shape) < 2:
        return ()
    looked = attention.max(axis=1) > 0
    return tuple((int(s), t) for t, s in enumerate(attention[:-1, :-1].argmax(axis=1)) if looked[t])


def words(text: str) -> list[Span]:
    """Return (begin, end) of each word of a text.

    Punctuation at the edge of a word is not part of it, but punctuation inside is ("don't", "3.5"). A run of
    punctuation is a word by itself, and so is each character of a script written without spaces.
    """
    kinds = "".join(map(_kind, text))
    return [match.span() for match in re.finditer(r"w(?:[wp]*w)?|p+|i", kinds)]


def replace_unknown(text: str, attention: np.ndarray, surfaces: Sequence[str], dictionary: Mapping[str, str]) -> str:
    """Replace the unknown words of a translation with source words, or with their entries in the dictionary.

    A word with an unknown piece is replaced as a whole with a whole source word, that of the source token with the most
    attention, summed over the unknown pieces. Adjacent unknown words aligned to the same source word become one copy of
    it.

    Args:
      text: the translation, with `UNKNOWN` for each unknown token.
      attention: [U, S], of the unknown tokens, in order, over the source tokens without the end symbol.
      surfaces: text of the source tokens, S or more (a long source may be truncated).
      dictionary: source word -> target word.
    """
    source = "".join(surfaces)
    places = list(itertools.pairwise(itertools.accumulate(map(len, surfaces), initial=0)))  # of each source token
    source_words = words(source)
    result, end, row = "", 0, 0
    before: Span | None = None
    for begin, stop in words(text):
        count = text.count(UNKNOWN, begin, stop)
        if not count:
            continue
        token = int(np.argmax(np.sum(attention[row : row + count], axis=0)))
        row += count
        span, between = _word_at(places[token], source, source_words), text[end:begin]
        if span != before or between.strip():
            word = source[slice(*span)].strip()
            result += between + dictionary.get(word, word)
        end, before = stop, span
    return result + text[end:]


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script written without spaces between words."""
    return unicodedata.name(character, "").startswith(_UNSPACED)


def _word_at(place: Span, text: str, found: Sequence[Span]) -> Span:
    """Return the span of the words that a token at `place` is part of, or of the next word for a space.

    `found` are the spans of all words of the text. Punctuation at the edges of a token that has words is left out.
    """
    begin, end = place
    touched = [span for span in found if span[0] < end and begin < span[1]]
    touched = [span for span in touched if _kind(text[span[0]]) != "p"] or touched
    touched = touched or [span for span in found if span[0] >= begin][:1] or [place]
    return touched[0][0], touched[-1][1]


def _kind(character: str) -> str:
    """Return the class of a character: space, punctuation, a word by itself ("i", ideographic), or part of a word."""
    if character.isspace():
        return " "
    if unicodedata.category(character).startswith("P"):
        return "p"
    return "i" if is_unspaced(character) else "w"
