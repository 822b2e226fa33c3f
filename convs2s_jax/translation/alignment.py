"""Which source word a target word attended to most, and how unknown target words are replaced by it.

Attention [T + 1, S + 1] is that of a `Candidate`: real positions only, the end symbols last. Both end symbols are left
out here, so that source tokens 0 to S - 1 and target tokens 0 to T - 1 count, whatever the padding was.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

UNKNOWN = "\ufdd2"
"""Stands for an unknown token inside a text: Unicode keeps this code point for use inside programs."""

NO_WORDS: Mapping[str, str] = MappingProxyType({})

# Scripts written without spaces: a word is not what stands between two of them.
_UNSPACED = ("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")

Span = tuple[int, int]


def pairs(attention: np.ndarray | None) -> tuple[tuple[int, int], ...]:
    """(source token, target token): what each target token looked at most, the end symbols left out.

    Args:
      attention: [T + 1, S + 1], or None where there is none; empty for an empty source.

    Returns:
      A pair for each target token, in their order; of equal weights the first source token counts. A decoder without
      attention has weights of zero, and its tokens have no pair.
    """
    if attention is None or min(attention.shape) < 2:
        return ()
    looked = attention.max(axis=1) > 0
    return tuple((int(s), t) for t, s in enumerate(attention[:-1, :-1].argmax(axis=1)) if looked[t])


def words(text: str) -> list[Span]:
    """Begin and end of the words of a text.

    Punctuation at the edge of a word is not part of it, punctuation inside is ("don't", "3.5"); a run of punctuation is
    a word by itself, and so is each character of a script written without spaces.
    """
    kinds = "".join(map(_kind, text))
    return [match.span() for match in re.finditer(r"w(?:[wp]*w)?|p+|i", kinds)]


def word_of(token: int, surfaces: Sequence[str]) -> Span:
    """Begin and end, in the joined `surfaces`, of the words that a token is part of; of the next for a mere space.

    Args:
      token: index.
      surfaces: what each token of the text stands for (`Vocabulary.surfaces`).
    """
    if not 0 <= token < len(surfaces):
        raise ValueError(f"token is {token}, the text has {len(surfaces)}")
    begin = sum(map(len, surfaces[:token]))
    end = begin + len(surfaces[token])
    found = words("".join(surfaces))
    touched = [(b, e) for b, e in found if b < end and begin < e]
    touched = touched or [span for span in found if span[0] >= begin][:1] or [(begin, end)]
    return touched[0][0], touched[-1][1]


def replace_unknown(
    text: str, attention: np.ndarray, surfaces: Sequence[str], dictionary: Mapping[str, str] = NO_WORDS
) -> str:
    """A translation with the source words in the place of its unknown words, or what the dictionary has for them.

    A word with an unknown piece is unknown as a whole, and what replaces it is a whole source word: the one of the
    token that its unknown pieces together looked at most. Neighbouring unknown words that looked at one source word
    become that word once.

    Args:
      text: with `UNKNOWN` for each unknown token.
      attention: [U, S], of the unknown tokens in their order over the source tokens, the end symbol left out.
      surfaces: of the source tokens, S or more (the end of a long source was cut off).
      dictionary: target words of source words.

    Raises:
      ValueError: U is not the number of unknown tokens in the text, or S is 0 or more than the source tokens.
    """
    if len(attention) != text.count(UNKNOWN):
        raise ValueError(f"attention is of {len(attention)} unknown tokens, the text has {text.count(UNKNOWN)}")
    if not 0 < attention.shape[1] <= len(surfaces):
        raise ValueError(f"attention is over {attention.shape[1]} source tokens, there are {len(surfaces)}")
    source = "".join(surfaces)
    result, end, row = "", 0, 0
    before: Span | None = None
    for begin, stop in words(text):
        count = text.count(UNKNOWN, begin, stop)
        if not count:
            continue
        token = int(np.argmax(np.sum(attention[row : row + count], axis=0)))
        row += count
        span, between = word_of(token, surfaces), text[end:begin]
        if span != before or between.strip():
            word = source[slice(*span)].strip()
            result += between + dictionary.get(word, word)
        end, before = stop, span
    return result + text[end:]


def _kind(character: str) -> str:
    """A space, punctuation, a character that is a word by itself ("i"), or one of a word."""
    if character.isspace():
        return " "
    if unicodedata.category(character).startswith("P"):
        return "p"
    return "i" if unicodedata.name(character, "").startswith(_UNSPACED) else "w"
