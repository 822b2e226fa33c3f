"""The commands that import checkpoints from fairseq and export checkpoints to it.

Their work is in the package `interop.fairseq`, which imports JAX; `--help` and flag errors do not wait for that.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import guard, quiet_imports


@dataclass(frozen=True, kw_only=True)
class ImportFlags:
    """Flags of the import command.

    Attributes:
      checkpoint: fairseq .pt files, or .npz files with config.json next to them; or their addresses in an object store
        (gs://BUCKET/NAME, s3://BUCKET/NAME).
      dicts: folder that contains dict.SRC.txt and dict.TGT.txt, or its address.
      workdir: new folders, one for each checkpoint; or the address of a single workdir in an object store.
      source_lang: SRC; by default the checkpoint's own.
      target_lang: TGT; by default the checkpoint's own.
      src_spm: SentencePiece model of the source, or its address, for text that is not yet split into pieces.
      tgt_spm: SentencePiece model of the target, or its address.
      bpe_codes: subword-nmt codes, one file or address for both sides or SRC,TGT, for text that is not yet split into
        pieces.
      average: create one workdir with the average of all checkpoints.
      momentum: carry over the optimiser's momentum.
      config: configuration file, or its address, whose fields override those of the checkpoint.
    """

    checkpoint: tuple[str, ...] = ()
    dicts: str = ""
    workdir: tuple[str, ...] = ()
    source_lang: str = ""
    target_lang: str = ""
    src_spm: str = ""
    tgt_spm: str = ""
    bpe_codes: tuple[str, ...] = ()
    average: bool = False
    momentum: bool = True
    config: str = ""

    def __post_init__(self) -> None:
        _check_given(self, "import", ("checkpoint", "dicts", "workdir"))
        check(
            bool(self.src_spm) == bool(self.tgt_spm),
            "--src_spm and --tgt_spm go together; set both or neither",
        )
        check(
            len(self.bpe_codes) <= 2,
            f"--bpe_codes lists {len(self.bpe_codes)} files; specify one for both sides, or two as SRC,TGT",
        )
        check(
            not (self.bpe_codes and self.src_spm),
            "--bpe_codes and --src_spm both split text into pieces; use the one that the model was trained with",
        )


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

    workdir: tuple[str, ...] = ()
    output: str = ""
    step: int | None = None
    source_lang: str = ""
    target_lang: str = ""
    momentum: bool = True

    def __post_init__(self) -> None:
        _check_given(self, "export", ("workdir", "output"))
        check(len(self.workdir) == 1, f"--workdir lists {len(self.workdir)} folders, but export accepts only one")


def import_main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert checkpoints to workdirs."""
    given = command_line.options_of(ImportFlags, values)
    with quiet_imports():
        from convs2s_jax.interop.fairseq.importing import Import, import_checkpoints

    order = Import(
        checkpoints=given.checkpoint,
        workdirs=given.workdir,
        dicts=given.dicts,
        languages=(given.source_lang, given.target_lang),
        models=(given.src_spm, given.tgt_spm) if given.src_spm else (None, None),
        codes=(given.bpe_codes[0], given.bpe_codes[-1]) if given.bpe_codes else (None, None),
        average=given.average,
        momentum=given.momentum,
        config=given.config,
        overrides=overrides,
    )
    import_checkpoints(order, _tell)


def export_main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert a workdir to a checkpoint."""
    command_line.refuse_overrides(overrides, "an export")
    given = command_line.options_of(ExportFlags, values)
    with quiet_imports():
        from convs2s_jax.interop.fairseq.exporting import Export, export_checkpoint

    order = Export(
        workdir=given.workdir[0],
        output=given.output,
        step=given.step,
        languages=(given.source_lang, given.target_lang),
        momentum=given.momentum,
    )
    export_checkpoint(order, _tell)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "import": Command(
            about="""
Import fairseq checkpoints:

  {program} --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config.path.to.field=value ...]

Each checkpoint becomes a workdir for decoding and further training (docs/fairseq.md).
""",
            groups=(Group("Options", ImportFlags),),
            main=import_main,
            stores=("checkpoint", "dicts", "workdir", "src_spm", "tgt_spm", "bpe_codes", "config"),
        ),
        "export": Command(
            about="""
Export a run to a checkpoint that fairseq can load:

  {program} --workdir=DIR --output=FILE.pt

The dictionaries are written next to it (docs/fairseq.md).
""",
            groups=(Group("Options", ExportFlags),),
            main=export_main,
            stores=("workdir", "output"),
        ),
    }
)


def run(program: str, arguments: Sequence[str]) -> None:
    """Run the command that the first argument names."""
    command, *rest = arguments if arguments and not arguments[0].startswith("-") else ("", *arguments)

    def refuse() -> None:
        if command in COMMANDS:
            _check_own(command, rest)
            return
        hint = did_you_mean(command, COMMANDS) if command else f"; use one of {', '.join(COMMANDS)}"
        raise UserError(f"unknown command '{command}'{hint}, as in python -m {program} import ...")

    if command or "--help" not in rest:
        guard(refuse, program=program)
        command_line.run(COMMANDS[command], arguments=[program, *rest])
        return

    def help_of_all() -> None:
        for name, about in COMMANDS.items():
            print(command_line.help_text(about, f"{program} {name}"), end="\n\n")  # noqa: T201

    guard(help_of_all, program=program)


def _check_own(command: str, arguments: Sequence[str]) -> None:
    """Reject a flag of the other command."""
    names = {name: {field.name for group in one.groups for field in group.fields} for name, one in COMMANDS.items()}
    for argument in arguments:
        flag = argument.removeprefix("--").partition("=")[0]
        for other in COMMANDS:
            if argument.startswith("--") and flag in names[other] - names[command]:
                raise UserError(f"--{flag} is a flag of {other}, not of {command}; remove it")


def _check_given(flags: Any, command: str, needed: Sequence[str]) -> None:
    for name in needed:
        if not getattr(flags, name):
            names = ", ".join(f"--{each}" for each in needed)
            raise UserError(f"--{name} is missing; {command} requires {names} (see --help)")


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201
