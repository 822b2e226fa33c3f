"""`convs2s attention`: draw the attention of the decoder."""

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, located
from convs2s_jax.core.guard import ended_by_signals

ABOUT = """
Draw the attention of each decoder layer and their mean, one picture per line:

  {program} --workdir=DIR --input=FILE --output=FOLDER [--targets=FILE] [--flag=value ...]

Without --targets, the lines are translated first, with the run's search options (docs/attention.md).
"""
FORMATS = ("png", "svg", "pdf")
WINDOW = 64
"""Number of lines whose attention is in memory at once."""


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """The flags of `convs2s attention`.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: the best checkpoint on validation.
      input: file with one source sentence per line; - for standard input.
      targets: file with the translation of each line. Without it, the lines are translated first.
      output: folder for the pictures, or its address; file names are line numbers.
      formats: file formats, from png, svg and pdf.
      layers: panels to draw: all (each layer and the mean), mean, or layer numbers.
    """

    workdir: str = ""
    checkpoint: tuple[str, ...] = ()
    input: str = "-"
    targets: str = ""
    output: str = ""
    formats: tuple[str, ...] = ("png", "svg")
    layers: tuple[str, ...] = ("all",)

    def __post_init__(self) -> None:
        for name in ("workdir", "output"):
            check(getattr(self, name) != "", f"--{name} is missing: attention needs --workdir and --output")
        odd = [name for name in self.formats if name not in FORMATS]
        check(bool(self.formats) and not odd, f"--formats={','.join(odd)}: choose from {', '.join(FORMATS)}")
        check(len(self.layers) > 0, "--layers is empty: use all, mean or layer numbers, as in --layers=1,2")
        check(
            self.input != "-" or self.targets != "-",
            "--input and --targets are both standard input, which can be read only once; use a file for one of them",
        )


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Draw the pictures."""
    options = command_line.options_of(AttentionOptions, values)
    command_line.refuse_overrides(overrides, "a picture")
    packages.check_installed("drawing attention", ("matplotlib",), "report")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs, local_copies
        from convs2s_jax.data.text_files import name_of, read_lines
        from convs2s_jax.training.run import outputs, run_folder, store_copy
        from convs2s_jax.translation import arguments, trained, translator
        from convs2s_jax.translation import attention as figures
        from convs2s_jax.translation.jobs.job import read_parallel

    outputs.check_outside_runs(options.output, "--output")
    compiled_programs.keep(os.environ)
    with store_copy.reading(options.workdir, tell) as (workdir, told):
        cfg = run_folder.load_config(workdir)
        with located(f"--workdir={workdir}"):
            figures.check_attends(cfg.translator)
        found = trained.restore(workdir, options.checkpoint, None, told)
    figures.check_layers(found.cfg.translator.decoder.attention_names, options.layers)
    name = name_of(options.input)
    with local_copies.incoming("--input", options.input) as path:
        lines = read_lines(str(path))
    targets = None
    if options.targets:
        with local_copies.incoming("--targets", options.targets) as path:
            targets = read_parallel(str(path), lines, name=name, what="translation")
        arguments.check_targets(translator.from_trained(found), options.targets, targets)
    real = [i for i, line in enumerate(lines) if line.strip()]
    check(len(real) > 0, f"{name} has no line with text: there is nothing to draw; write one source on each line")
    for i in sorted({*range(len(lines))} - {*real}):
        tell(f"{name}, line {i + 1} is empty: no picture is drawn")
    digits = max(4, len(str(len(lines))))
    with local_copies.outgoing_folder("--output", options.output, tell) as (folder, told, *_):
        _make_writable(folder)
        for begin in range(0, len(real), WINDOW):
            window = real[begin : begin + WINDOW]
            some = None if targets is None else [targets[i] for i in window]
            made = figures.layer_attention(found, [lines[i] for i in window], some)
            for i, attention in zip(window, made, strict=True):
                where = f"{name}, line {i + 1}"
                if attention.cut:
                    tell(arguments.left_out(where, attention.cut))
                path = folder / f"{i + 1:0{digits}}"
                figures.draw(attention, path, options.formats, layers=options.layers, tell=told)
    print(f"written: {counted(len(real), 'picture')} as {' and '.join(options.formats)} in {options.output}")  # noqa: T201


def _make_writable(folder: Path) -> None:
    """Create the folder if it is missing. Raises UserError if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--output={folder} cannot be written: {error.strerror}; choose another folder") from error


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", AttentionOptions),),
    main=main,
    stores=("workdir", "input", "targets", "output"),
)
console = functools.partial(command_line.run, COMMAND)
