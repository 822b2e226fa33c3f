"""Checks of the arguments of a `Translator`: lines of text, required words, and options."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import shown
from convs2s_jax.data.text_files import without_end
from convs2s_jax.models.checks import check_config
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import fit
from convs2s_jax.translation.loaded import LoadedModel


def texts_of(name: str, given: Iterable[str]) -> list[str]:
    r"""Return strings of one line each as a list, without \n, \r\n or \r at their ends, as when a file is read.

    Args:
      name: what each string is, for messages.
      given: any iterable of str.

    Raises:
      TypeError: `given` is a single string rather than a list, or an entry is not a str.
      ValueError: a string has more than one line, or half of a surrogate pair.
    """
    texts = _listed(given, "strings")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TypeError(
                f"{name} {number} is {shown(text)}, of type {type(text).__name__}: expected a str, which may be empty"
            )
    lines = [without_end(text) for text in texts]
    for number, line in enumerate(lines, 1):
        if "\n" in line:
            raise ValueError(f"{name} {number} contains a line break: pass each line as a separate string")
        if not is_unicode(line):
            raise ValueError(
                f"{name} {number} contains half of a surrogate pair, which is not a character: correct its encoding"
            )
    return lines


def is_unicode(text: str) -> bool:
    """Return whether a string has no half of a surrogate pair, for which "surrogateescape" stands for odd bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def phrases_of(given: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the phrases of each line as lists. Raises TypeError and ValueError as `texts_of` does."""
    return [texts_of(f"constraints {i}: phrase", one) for i, one in enumerate(_listed(given, "lists of phrases"), 1)]


def check_required(
    translator: LoadedModel,
    search: SearchConfig,
    lines: Sequence[str],
    *,
    prefix: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
) -> None:
    """Reject prefixes and constraints that no translation can satisfy.

    Raises:
      UserError: there is not one per line, or `fit.check_fit` refuses one.
    """
    for name, given in (("prefix", prefix), ("constraints", constraints)):
        check(
            given is None or len(given) == len(lines),
            f"{name} has {len(given or ())} entries for {len(lines)} lines: pass one per line, which may be empty",
        )
    fit.check_fit(
        translator,
        search,
        lines,
        prefix=None if prefix is None else ("prefix", prefix),
        constraints=None if constraints is None else ("constraints", constraints),
    )


def check_options(
    translator: LoadedModel,
    search: SearchConfig,
    *,
    nbest: int | None,
    replace_unk: bool,
    unk_dictionary: Mapping[str, str] | None,
) -> None:
    """Reject options that have no effect, or that the model does not support.

    Raises:
      TypeError: `search` is not a `SearchConfig`.
      ValueError: there is such an option; the message names it.
    """
    check_config(search, SearchConfig, name="search")
    if nbest is not None and (not isinstance(nbest, Integral) or not 1 <= nbest <= search.beam_size):
        raise ValueError(
            f"nbest is {nbest!r}: use 1 to {search.beam_size}, because a search returns at most beam_size hypotheses"
        )
    if replace_unk and not translator.attends:
        raise ValueError("replace_unk: this model has no attention to find the source words; leave it out")
    if unk_dictionary is not None and not replace_unk:
        raise ValueError("unk_dictionary without replace_unk: no unknown word is replaced; set replace_unk=True too")


def _listed(given: Iterable[Any], what: str) -> list[Any]:
    """Convert an iterable to a list. Raises TypeError for a single string, which is iterable too, and other objects."""
    if isinstance(given, str | bytes):
        kind = "string" if isinstance(given, str) else "bytes"
        raise TypeError(f"expected a list of {what}, got the {kind} {given[:40]!r}; put it in a list")
    if not isinstance(given, Iterable):
        raise TypeError(f"expected a list of {what}, got {shown(given)}; pass a list, which may be empty")
    return list(given)
