"""`convs2s train`, convs2s-train and train.py: train a model. `convs2s prepare`, `data report`: what comes before."""

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convs2s_jax.commands.shared import leave, read_config, tell
from convs2s_jax.core import command_line, guard
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import printable, shortened
from convs2s_jax.core.guard import SMALLER_BATCHES, ended_by_signals
from convs2s_jax.core.places import check_no_comma, joined, scheme_of
from convs2s_jax.core.platforms import expects_cpu, keep_freed_memory
from convs2s_jax.training.run.processes.options import Processes, from_environment


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What to report.

    Attributes:
      config: as for convs2s train.
    """

    config: str = ""

    def __post_init__(self) -> None:
        check(self.config != "", "--config is missing, as in --config=your_text")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and where the results go.

    Attributes:
      config: name of a configuration that comes with the package (`convs2s config` lists them), or path or address
        (gs://BUCKET/NAME, s3://BUCKET/NAME) of a Python file or of a run's config.json. By default the config.json of
        an existing run in --workdir.
      workdir: folder for all output of the run, or its address in an object store. An existing run is continued.
    """

    config: str = ""
    workdir: str = ""

    def __post_init__(self) -> None:
        missing = "workdir" if self.config else "config"
        check(self.workdir != "", f"--{missing} is missing, as in --config=cldr_en_de --workdir=runs/a")
        check_no_comma("--workdir", self.workdir)
        check(
            self.config != "" or scheme_of(self.workdir) != "" or os.path.isfile(self.stored),
            f"--config is missing, and --workdir={self.workdir} has no run to continue; add a configuration, as in "
            "--config=cldr_en_de",
        )

    @property
    def stored(self) -> str:
        """The configuration of the run in the workdir."""
        return joined(self.workdir, "config.json")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(TrainOptions):
    """What to prepare, and where the results go.

    Attributes:
      workdir: workdir of the training run to follow, on a file system that all its machines can access.
      part: i/N: only tokenise the i-th of N parts of the training text. Others may do the rest at the same time; the
        same command without --part, or convs2s train, joins all parts.
      engine: what tokenises long training text: processes of this machine (data.workers), or a ray cluster, that of
        RAY_ADDRESS or one on this machine.
    """

    part: str = ""
    engine: Literal["processes", "ray"] = "processes"

    def __post_init__(self) -> None:
        super().__post_init__()
        right = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", self.part)
        check(
            not self.part or (right is not None and int(right[1]) <= int(right[2])),
            f"--part={self.part}: use i/N, the i-th of N parts, as in --part=1/8",
        )


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Read the configuration, connect to the other processes, and train."""
    options = command_line.options_of(TrainOptions, values)
    processes = from_environment(command_line.options_of(Processes, values), os.environ)
    cfg = read_config(options.config or options.stored, overrides)  # refuses before all else is imported
    with ended_by_signals():
        import jax

        from convs2s_jax.core import compiled_programs
        from convs2s_jax.training.run import mirror
        from convs2s_jax.training.run.loop import train
        from convs2s_jax.training.run.processes import distributed
        from convs2s_jax.training.run.processes.interrupts import Interrupts
        from convs2s_jax.training.run.processes.joining import join

    sys.stderr = guard.Expendable(sys.stderr)
    settings: Any = jax.config  # its attributes are created when JAX starts
    if expects_cpu(settings.jax_platforms):
        keep_freed_memory()
    with distributed.guarded():
        join(processes)
        if scheme_of(options.workdir):
            mirror.keep_programs(options.workdir, os.environ)
        elif not distributed.is_multi_process():  # of several only the first would write what the others reuse
            compiled_programs.keep(os.environ)
        train(cfg, options.workdir, Interrupts(own_process=True))


def prepare(values: dict[str, Any], overrides: Overrides) -> None:
    """Prepare the data of a run."""
    options = command_line.options_of(PrepareOptions, values)
    cfg = read_config(options.config or options.stored, overrides)
    with ended_by_signals():
        import jax

        from convs2s_jax.training.run import opening

    settings: Any = jax.config
    settings.update("jax_platforms", "cpu")  # leave accelerators to other programs
    number, _, of = options.part.partition("/")
    part = (int(number), int(of)) if of else None
    opening.prepare_only(cfg, Path(options.workdir), tell, part=part, engine=options.engine)


def report(values: dict[str, Any], overrides: Overrides) -> None:
    """Read the training text, and print how many pairs are kept and left out, with examples."""
    cfg = read_config(command_line.options_of(DataOptions, values).config, overrides).data
    with ended_by_signals():
        from convs2s_jax.data import parallel_text

    with tempfile.TemporaryDirectory(prefix="convs2s_jax-") as folder:
        train, valid = parallel_text.read_train_and_valid(cfg, Path(folder))
    held_out = {"held out, with copies": (len(valid) + valid.copies, ())} if valid.is_held_out else {}
    counts: dict[str, tuple[int, Any]] = {"kept": (len(train), ()), **held_out, **train.dropped}
    total = sum(count for count, _ in counts.values())
    for name, (count, examples) in counts.items():
        print(f"{name}  {count}  {count / total:.2%}")
        for line, *sides in examples:
            print("", train.place(line), *(printable(shortened(side, 80)) for side in sides), sep="  ")


def _fields() -> str:
    """The text of `--help=config`."""
    from convs2s_jax.commands import reference  # imports JAX

    return reference.text()


COMMAND = Command(
    about="""
Train a model, or continue the run in --workdir:

  {program} --config=NAME --workdir=DIR [--config.path.to.field=value ...]

Run the same command again to continue the run, or {program} --workdir=DIR with its stored configuration. Ctrl-C,
SIGTERM and SIGHUP (a closed terminal) save a checkpoint and stop. Training uses all devices of a machine
(--config.mesh.data=1 uses one), and of several machines if each runs the command (docs/distributed.md).

Every configuration field is a flag, as in --config.model.dropout=0.3. The sections are --config.data, --config.model,
--config.training, --config.search and --config.mesh; --help=config (docs/configuration.md) lists all fields.
""",
    groups=(Group("Options", TrainOptions), Group("Several processes", Processes)),
    main=main,
    own_signals=True,
    leave=leave,
    topics={"config": _fields},
    stores=("config", "workdir"),
    memory=SMALLER_BATCHES,
)
PREPARE = Command(
    about="""
Learn the vocabularies, tokenise the text and choose the batch shapes of a training run, without training:

  {program} --config=NAME --workdir=DIR [--config.path.to.field=value ...]

`convs2s train` with the same flags finds the results and starts training at once. A machine without accelerators can do
this work once for all processes of a run, and you can read what it reports about the text before training.
""",
    groups=(Group("Options", PrepareOptions),),
    main=prepare,
    stores=("config",),
)
DATA = Command(
    about="""
Read the training text as convs2s train does, and report the pairs that data.filters leaves out, with examples:

  {program} --config=NAME [--config.data.filters.field=value ...]
""",
    groups=(Group("Options", DataOptions),),
    main=report,
    stores=("config",),
)
