"""`convs2s export`: export a run as compiled programs or as a fairseq checkpoint."""

import re
from collections.abc import Sequence
from typing import Any

from convs2s_jax.commands.decode import COMMAND as DECODE
from convs2s_jax.commands.decode import SEARCH, search_options
from convs2s_jax.commands.export_fairseq import COMMAND as FAIRSEQ
from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals, guard
from convs2s_jax.interop.orders import ProgramExport

ABOUT = """
Export a model:

  {program} --workdir=DIR --output=FOLDER [--flag=value ...]

writes a folder with programs for CPU, GPU and TPU, parameters (safetensors), vocabularies and translate.py, which runs
without this package (docs/export.md).

  {program} --workdir=DIR --output=FILE.pt [--flag=value ...]

writes a checkpoint that fairseq loads; --help=fairseq lists its flags (docs/fairseq.md).
"""
EXTENSION = ".pt"
"""File name extension of fairseq checkpoints."""
_FLAG = re.compile(r"--?(\w+)(?:=(.*))?", re.DOTALL)
INSTEAD = {"checkpoint": "use --step", "step": "use --checkpoint"}
"""Flags that have another name in the other kind of export."""
NEEDED = ("flatbuffers", "safetensors")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Export programs."""
    options = command_line.options_of(ProgramExport, values)
    search = search_options(values, overrides)
    packages.check_installed("exporting", NEEDED, "export")
    with ended_by_signals():
        from convs2s_jax.interop.programs.exporting import export_programs
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(options.output, "--output")
    export_programs(options, search, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ProgramExport), SEARCH),
    main=main,
    stores=("workdir",),
    topics={"fairseq": lambda: command_line.help_text(FAIRSEQ, "convs2s export")},
)


def console(arguments: Sequence[str]) -> None:
    """Run the kind of export that the end of --output selects."""
    flags = [_FLAG.fullmatch(argument) for argument in arguments[1:]]
    outputs = [
        following if flag[2] is None else flag[2]
        for flag, following in zip(flags, [*arguments[2:], ""], strict=True)
        if flag and flag[1] == "output"
    ]
    fairseq = any(output.endswith(EXTENSION) for output in outputs)
    own, other = (FAIRSEQ, COMMAND) if fairseq else (COMMAND, FAIRSEQ)
    guard(lambda: _check_own(own, other, [flag[1] for flag in flags if flag]), program=arguments[0])
    command_line.run(own, arguments=arguments)


def _check_own(own: Command, other: Command, given: Sequence[str]) -> None:
    """Reject a flag of the other kind of export, or of decoding."""
    names, others, decoding = (
        {field.name for group in one.groups for field in group.fields} for one in (own, other, DECODE)
    )
    for name in given:
        spellings = {name, name.removeprefix("no")}
        if spellings & names:
            continue
        check(
            not spellings & others,
            f"--{name} is a flag of the other kind of export ({EXTENSION} at the end of --output means fairseq): "
            f"{INSTEAD.get(name, 'remove it')}",
        )
        check(not spellings & decoding, f"--{name} is a flag of convs2s decode, not of an export: remove it")
