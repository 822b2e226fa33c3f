"""Checks of what callers hand to a `Translator`: texts, what their translations have to contain, and options."""

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
    r"""Texts of one line each, without the \n, \r\n or \r at their ends, as a file of them is read.

    Args:
      name: what each is, for messages.
      given: any iterable of str.

    Raises:
      TypeError: it is one text and no list of them, or holds something else than str.
      ValueError: a text has more than one line.
    """
    texts = _listed(given, "texts")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TypeError(f"{name} {number} is {shown(text)}, of type {type(text).__name__}: give a str, be it empty")
    lines = [without_end(text) for text in texts]
    for number, line in enumerate(lines, 1):
        if "\n" in line:
            raise ValueError(f"{name} {number} has a line break: give each line as a text of its own")
    return lines


def phrases_of(given: Iterable[Iterable[str]]) -> list[list[str]]:
    """The phrases of each line. Raises TypeError and ValueError as `texts_of` does."""
    return [texts_of(f"constraints {i}: phrase", one) for i, one in enumerate(_listed(given, "lists of phrases"), 1)]


def check_required(
    translator: LoadedModel,
    search: SearchConfig,
    lines: Sequence[str],
    *,
    prefix: Sequence[str] | None,
    constraints: Sequence[Sequence[str]] | None,
) -> None:
    """Refuse prefixes and constraints that no translation can have.

    Raises:
      UserError: there is not one for each line, or see `fit.check_fit`.
    """
    for name, given in (("prefix", prefix), ("constraints", constraints)):
        check(
            given is None or len(given) == len(lines),
            f"{name} has {len(given or ())} entries and lines {len(lines)}: give one for each line, be it empty",
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
    """Refuse options that would change nothing, or that the model cannot follow.

    Raises:
      TypeError: `search` is no `SearchConfig`.
      ValueError: the message says which.
    """
    check_config(search, SearchConfig, name="search")
    if nbest is not None and (not isinstance(nbest, Integral) or not 1 <= nbest <= search.beam_size):
        raise ValueError(
            f"nbest is {nbest!r}: use 1 to {search.beam_size}, since a search has as many hypotheses as its beam"
        )
    if replace_unk and not translator.attends:
        raise ValueError("replace_unk: this model has no attention to find the source words; leave it out")
    if unk_dictionary is not None and not replace_unk:
        raise ValueError("unk_dictionary without replace_unk: no unknown word is replaced; give replace_unk=True too")


def _listed(given: Iterable[Any], what: str) -> list[Any]:
    """What is given as a list. Raises TypeError for a single text, which is a sequence too, and for what is none."""
    if isinstance(given, str | bytes):
        kind = "string" if isinstance(given, str) else "bytes"
        raise TypeError(f"expected a list of {what}, got the {kind} {given[:40]!r}; put it in a list")
    if not isinstance(given, Iterable):
        raise TypeError(f"expected a list of {what}, got {shown(given)}; give one, be it empty")
    return list(given)
