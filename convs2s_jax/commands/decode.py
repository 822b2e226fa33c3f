"""`convs2s decode`, convs2s-decode and decode.py: translate or label text."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check, convert, literal
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.options import READ, Options

ABOUT = """
Translate or label text:

  {program} --workdir=DIR [--input=FILE] [--output=FILE] [--reference=FILE] [--flag=value ...]

By default it reads standard input and writes standard output, one line out per line in. docs/decoding.md has an example
of every flag. For search flags, --config.search.FIELD=value is the same as --FIELD=value. If the corpus of --split has
moved, set --config.data.dir or --config.data.files to its new place.
"""
SEARCH = Group("Search (each flag overrides a field of the run's configuration)", SearchConfig, default="from the run")


def options(values: Mapping[str, Any], overrides: Overrides) -> Options:
    """Parse the flags into an `Options` record.

    Raises:
      UserError: options that contradict each other, or an override outside `search`.
    """
    corpus, others = places_of_corpus(overrides)
    return command_line.options_of(Options, values, search=search_options(values, others), corpus=tuple(corpus))


def places_of_corpus(overrides: Overrides) -> tuple[Overrides, Overrides]:
    """Split overrides into those that set the current place of a run's corpus, and the others."""
    places = [one for one in overrides if re.fullmatch(r"data\.(dir|files(\..*)?)", one[0])]
    return places, [one for one in overrides if one not in places]


def search_options(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the search fields that are set, as flags or as `--config.search.*`, which goes before the flag.

    Raises:
      UserError: an override outside `search`, or of a field that does not exist.
    """
    kinds = {field.name: field.kind for field in SEARCH.fields}
    search = {name: values[name] for name in kinds if name in values}
    for path, text in overrides:
        section, _, name = path.partition(".")
        if section != "search":
            raise UserError(
                f"--config.{path}: decoding uses the configuration in --workdir; only --config.search.* can be set"
            )
        if name not in kinds:
            raise UserError(f"--config.{path}: there is no field '{name}'{did_you_mean(name, kinds)}")
        search[name] = convert(kinds[name], literal(text), f"--config.{path}")
    return search


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """The flags of `convs2s merge`.

    Attributes:
      output: the --output of `convs2s decode --parts=N`; the parts beside it are joined to it.
    """

    output: str = ""

    def __post_init__(self) -> None:
        check(self.output not in ("", "-"), "--output is missing: set it to that of convs2s decode --parts=N")


def merge(values: dict[str, Any], overrides: Overrides) -> None:
    """Join the parts of an output."""
    options = command_line.options_of(MergeOptions, values)
    command_line.refuse_overrides(overrides, "a merge")
    with ended_by_signals():
        from convs2s_jax.training.run import outputs
        from convs2s_jax.translation.jobs import parts

    outputs.check_outside_runs(options.output, "--output")
    parts.merge(options.output, tell=tell)


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Decode a file or interactive input."""
    given = options(values, overrides)
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.translation.jobs import decoding, on_ray, parts

    compiled_programs.keep(os.environ)
    (on_ray if given.engine else parts if given.parts else decoding).decode(given, tell=tell)


COMMAND = Command(
    about=ABOUT,
    stores=("workdir", "lm", "reference", "output", *READ),
    groups=(Group("Options", Options, leave_out=("search", "corpus")), SEARCH),
    main=main,
    memory="use a smaller --batch_tokens, --batch_size, --beam_size or --window",
)
MERGE = Command(
    about="""
Join the parts that `convs2s decode --parts=N` has written, once all are complete:

  {program} --output=FILE

The result is that of one process: the same bytes (docs/decoding.md).
""",
    groups=(Group("Options", MergeOptions),),
    main=merge,
    stores=("output",),
)
