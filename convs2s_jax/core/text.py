"""White space and invisible characters in lines of text."""

import re
from collections.abc import Collection, Iterable

ODD = (
    "[\\s\u200b\xad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001]"
)
"""White space and invisible characters, as a regular expression."""
BLANK = f"({ODD}|[\u200c\u200d\U00013430-\U0001343f\U000e0020-\U000e007f])*"
"""A text without anything visible: those characters, and those that only change their neighbours."""


def visible(text: str, kept: Collection[str] = ()) -> str:
    """Return a text with spaces for all white space, and without invisible characters.

    White space is Unicode's, its control characters, and the zero-width space U+200B, which separates words. Other
    format characters (category Cf) do not, such as the soft hyphen, byte order marks and directions: they are removed.
    Those that change what is seen stay: the joiners U+200C and U+200D, tags of emoji, controls of hieroglyphs, and the
    visible signs of Arabic numbers. A text without anything visible is empty.

    Args:
      text: a line.
      kept: white space and invisible characters that stay in a line with others, because a vocabulary contains them.
    """
    if text.isprintable():  # nothing of the kind but spaces
        return "" if text.isspace() else text
    if re.fullmatch(BLANK, text):
        return ""

    def shown(found: re.Match[str]) -> str:
        odd = found[0]
        return odd if odd in kept else " " if odd.isspace() or odd == "\u200b" else ""

    return re.sub(ODD, shown, text)


def odd_of(symbols: Iterable[str]) -> frozenset[str]:
    """Return the characters that `visible` replaces or removes, of those in the symbols of a vocabulary."""
    return frozenset(re.findall(ODD, "".join(symbols))) - {" "}
