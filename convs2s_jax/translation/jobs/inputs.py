"""Check and read files beside the source: prefixes, constraints, translations to score, references, dictionaries."""

import os
from collections.abc import Sequence

from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.text_files import name_of, read_lines
from convs2s_jax.translation import trained
from convs2s_jax.translation.jobs.options import READ, Options
from convs2s_jax.translation.lines import LoadedModel
from convs2s_jax.translation.trained import Trained


def check_present(options: Options) -> None:
    """Reject missing files before the model is loaded. Addresses in object stores are not checked.

    Raises:
      UserError: a file cannot be found.
    """
    for path in (*(getattr(options, name) for name in READ), *options.reference):
        if path not in ("", "-") and not scheme_of(path):
            try:
                os.stat(path)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise UserError(f"{path} cannot be read: {why}; choose another file") from error


def read_parallel(path: str, lines: Sequence[str], *, name: str, what: str) -> list[str]:
    """Read a file with one line for each source line.

    Args:
      path: path of the file.
      lines: source lines.
      name: name of the source, for messages.
      what: what a line of the file is, for messages.

    Raises:
      UserError: the file cannot be read, or has a different number of lines.
    """
    found = read_lines(path)
    if len(found) != len(lines):
        count = counted(len(lines), "line")
        raise UserError(f"{name} has {count}, but {name_of(path)} has {len(found)}: each line needs its {what}")
    return found


def read_split(options: Options, model: LoadedModel | Trained, tell: Tell) -> ParallelText:
    """Read the requested split of the first run's corpus (`trained.read_split`)."""
    assert options.split is not None
    return trained.read_split(
        model.cfg,
        model.vocabularies,
        options.split,
        model.splits,
        options.workdir[0],
        tell=tell,
        places=options.corpus,
    )


def phrases_of(lines: Sequence[str]) -> list[list[str]]:
    """Return the TAB-separated phrases of each line; empty phrases are dropped."""
    return [[phrase for phrase in line.split("\t") if phrase.strip()] for line in lines]


def check_empty(name: str, lines: Sequence[str]) -> None:
    """Reject source text for a language model.

    Raises:
      UserError: a line is not empty. The message contains the file and the line.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            raise UserError(
                f"{name}, line {number} is not empty: a language model reads no source and writes one text per empty "
                "line; use --prefix for the first words of texts, and --score=FILE to score given ones"
            )


def read_dictionary(path: str) -> dict[str, str]:
    """Read a dictionary from source to target words, with a source word, TAB, a target word on each line.

    Raises:
      UserError: a line has another form, or a source word is listed twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        source, _, target = (part.strip() for part in line.partition("\t"))
        if not source or not target or "\t" in target:
            raise UserError(f"{path}, line {number}: {line!r} is not a source word, TAB, a target word")
        if found.setdefault(source, target) != target:
            raise UserError(f"{path}, line {number}: '{source}' has another target word above; remove one of the two")
    return found
