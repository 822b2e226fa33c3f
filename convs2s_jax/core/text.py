"""Lines of text: white space, invisible characters, and normalisation."""

import functools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

from convs2s_jax.core.packages import check_installed

Normalization = Literal["nfkc", "moses"]

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


@functools.cache
def normalizer(rules: tuple[Normalization, ...]) -> Callable[[str], str]:
    """Return a function that applies these rules to a line, up to ten times, until it stays as it is.

    So a text that was normalised when it was read is not changed by a model that reads it.

    Raises:
      UserError: the library of a rule is missing.
    """
    steps = [_moses() if rule == "moses" else functools.partial(unicodedata.normalize, "NFKC") for rule in rules]

    def normalized(line: str) -> str:
        for _ in range(10 if steps else 0):
            line, before = functools.reduce(lambda text, step: step(text), steps, line), line
            if line == before:
                break
        return line

    return normalized


def _moses() -> Callable[[str], str]:
    """Return Moses' normalisation of punctuation, without the rules that depend on the language."""
    check_installed("data.normalize with moses", ["sacremoses"], "moses")
    from sacremoses import MosesPunctNormalizer

    rules: Any = MosesPunctNormalizer(norm_quote_commas=False, norm_numbers=False).substitutions
    compiled = [functools.partial(re.compile(pattern).sub, new) for pattern, new in rules]
    plain = re.compile("[\\w,.?!-]+(?: [\\w,.?!-]+)*").fullmatch  # each rule needs another character or two spaces
    return lambda line: line if plain(line) else functools.reduce(lambda x, rule: rule(x), compiled, line).strip()
