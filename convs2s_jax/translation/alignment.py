"""Alignment of target tokens to source tokens by attention, and replacement of unknown words.

Attention [T + 1, S + 1] comes from a `Candidate`: no padding, end symbols last. Both end symbols are dropped here,
leaving source tokens 0 to S - 1 and target tokens 0 to T - 1.
"""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

UNKNOWN = "\ufdd2"
"""Placeholder for an unknown token in a text: a code point that Unicode reserves for internal use."""

NO_WORDS: Mapping[str, str] = MappingProxyType({})

# Scripts written without spaces between words.
_UNSPACED = ("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")

Span = tuple[int, int]


def pairs(attention: np.ndarray | None) -> tuple[tuple[int, int], ...]:
    """(source token, target token): the most attended source token of each target token, end symbols excluded.

    Args:
      attention: [T + 1, S + 1], or None without attention; empty for an empty source.

    Returns:
      A pair for each target token, in order; ties go to the first source token. A decoder without attention has zero
      weights, and its tokens have no pair.
    """
    if attention is None or min(attention.shape) < 2:
        return ()
    looked = attention.max(axis=1) > 0
    return tuple((int(s), t) for t, s in enumerate(attention[:-1, :-1].argmax(axis=1)) if looked[t])


def words(text: str) -> list[Span]:
    """(begin, end) of each word of a text.

    Punctuation at the edge of a word is not part of it, punctuation inside is ("don't", "3.5"); a run of punctuation
    is a word by itself, and so is each character of a script written without spaces.
    """
    kinds = "".join(map(_kind, text))
    return [match.span() for match in re.finditer(r"w(?:[wp]*w)?|p+|i", kinds)]


def word_of(token: int, surfaces: Sequence[str]) -> Span:
    """(begin, end), in the joined `surfaces`, of the words that contain a token; for a lone space, of the next word.

    Args:
      token: index.
      surfaces: text of each token (`Vocabulary.surfaces`).
    """
    if not 0 <= token < len(surfaces):
        raise ValueError(f"token is {token}, the text has {len(surfaces)}")
    return _word_at(_places(surfaces)[token], words("".join(surfaces)))


def replace_unknown(
    text: str, attention: np.ndarray, surfaces: Sequence[str], dictionary: Mapping[str, str] = NO_WORDS
) -> str:
    """Replace the unknown words of a translation by source words, or by their entries in the dictionary.

    A word with an unknown piece is replaced as a whole, by a whole source word: the word of the source token with the
    most attention, summed over the unknown pieces. Neighbouring unknown words aligned to the same source word become
    one copy of it.

    Args:
      text: the translation, with `UNKNOWN` for each unknown token.
      attention: [U, S], of the unknown tokens, in order, over the source tokens without the end symbol.
      surfaces: text of the source tokens, S or more (the end of a long source may be cut).
      dictionary: source word -> target word.

    Raises:
      ValueError: U is not the number of unknown tokens in the text, or S is 0 or more than the source tokens.
    """
    if len(attention) != text.count(UNKNOWN):
        raise ValueError(f"attention is of {len(attention)} unknown tokens, the text has {text.count(UNKNOWN)}")
    if not 0 < attention.shape[1] <= len(surfaces):
        raise ValueError(f"attention is over {attention.shape[1]} source tokens, there are {len(surfaces)}")
    source = "".join(surfaces)
    places, source_words = _places(surfaces), words(source)
    result, end, row = "", 0, 0
    before: Span | None = None
    for begin, stop in words(text):
        count = text.count(UNKNOWN, begin, stop)
        if not count:
            continue
        token = int(np.argmax(np.sum(attention[row : row + count], axis=0)))
        row += count
        span, between = _word_at(places[token], source_words), text[end:begin]
        if span != before or between.strip():
            word = source[slice(*span)].strip()
            result += between + dictionary.get(word, word)
        end, before = stop, span
    return result + text[end:]


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script written without spaces between words."""
    return unicodedata.name(character, "").startswith(_UNSPACED)


def _places(surfaces: Sequence[str]) -> list[Span]:
    """Where each token is in the text that they make."""
    return list(itertools.pairwise(itertools.accumulate(map(len, surfaces), initial=0)))


def _word_at(place: Span, found: Sequence[Span]) -> Span:
    """`word_of` of the token at this place, `found` being all words of its text: in the logarithm of their number."""
    begin, end = place
    first = bisect.bisect_right(found, begin, key=lambda span: span[1])
    after = bisect.bisect_left(found, end, key=lambda span: span[0])
    following = bisect.bisect_left(found, begin, key=lambda span: span[0])
    touched = found[first:after] or found[following : following + 1] or [place]
    return touched[0][0], touched[-1][1]


def _kind(character: str) -> str:
    """The class of a character: space, punctuation, a word by itself ("i", ideographic), or part of a word."""
    if character.isspace():
        return " "
    if unicodedata.category(character).startswith("P"):
        return "p"
    return "i" if is_unspaced(character) else "w"
