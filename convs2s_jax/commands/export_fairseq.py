"""`convs2s export --output=FILE.pt`: export a run to a checkpoint that fairseq can load."""

from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import check_languages, tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals

ABOUT = """
Export a run to a checkpoint that fairseq can load:

  {program} --workdir=DIR --output=FILE.pt

The dictionaries are written next to it (docs/fairseq.md).
"""


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Flags of the export command.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: .pt file to write, or its address; the dictionaries are written next to it.
      step: step of the checkpoint; by default the best on validation.
      source_lang: language in the name of the source dictionary; by default the run's own.
      target_lang: language in the name of the target dictionary; by default the run's own.
      momentum: carry over the optimiser's momentum.
    """

    workdir: str = ""
    output: str = ""
    step: int | None = None
    source_lang: str = ""
    target_lang: str = ""
    momentum: bool = True

    def __post_init__(self) -> None:
        for name in ("workdir", "output"):
            check(getattr(self, name) != "", f"--{name} is missing: export needs --workdir and --output")
        check_languages(self.source_lang, self.target_lang)


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert a workdir to a checkpoint."""
    command_line.refuse_overrides(overrides, "an export")
    given = command_line.options_of(ExportFlags, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.exporting import Export, export_checkpoint
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(given.output, "--output")
    order = Export(
        workdir=given.workdir,
        output=given.output,
        step=given.step,
        languages=(given.source_lang, given.target_lang),
        momentum=given.momentum,
    )
    export_checkpoint(order, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ExportFlags),),
    main=main,
    stores=("workdir", "output"),
)
