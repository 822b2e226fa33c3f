"""Commands on trained models: serve, report, shortlist, average, import and export."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.commands.decode import SEARCH, places_of_corpus, search_options
from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, guard, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.fields import fields_of
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.core.places import check_no_comma, joined, scheme_of
from convs2s_jax.interop.orders import FairseqExport, FairseqImport, ProgramExport
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.serving.options import ServeOptions

FAIRSEQ = ".pt"
"""File name extension of fairseq checkpoints."""


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """The flags of `convs2s average`.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: the best checkpoint on validation.
      output: folder of the new workdir.
    """

    workdir: str = ""
    checkpoint: tuple[str, ...] = ()
    output: str = ""

    def __post_init__(self) -> None:
        for name in ("workdir", "output"):
            check(getattr(self, name) != "", f"--{name} is missing: set --workdir and --output")


@dataclass(frozen=True, kw_only=True)
class ShortlistOptions:
    """The flags of `convs2s shortlist`.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME). The training
        text of the run must be available.
      output: file to write; default: "shortlist" in the workdir, if that is a folder.
      words: number of likely target words per source word, under IBM model 1.
      frequent: number of most frequent target words that every sentence may use.
      iterations: number of iterations of expectation maximisation.
      pairs: maximum number of sentence pairs to learn from. For a longer text, only every second pair is read, or every
        third, and so on.
    """

    workdir: str = ""
    output: str = ""
    words: int = 50
    frequent: int = 100
    iterations: int = 5
    pairs: int = 500_000

    def __post_init__(self) -> None:
        check(self.workdir != "", "--workdir is missing, as in --workdir=runs/demo")
        check(
            self.output != "" or not scheme_of(self.workdir),
            "--output is missing: set it to a local file, since --workdir is in an object store",
        )
        for name, least in (("words", 1), ("iterations", 1), ("pairs", 1), ("frequent", 0)):
            check(getattr(self, name) >= least, f"--{name} is {getattr(self, name)}: use {least} or more")


def serve(values: dict[str, Any], overrides: Overrides) -> None:
    """Serve until a signal arrives."""
    options = command_line.options_of(ServeOptions, values, search=search_options(values, overrides))
    packages.check_installed("serving", ("fastapi", "uvicorn", "prometheus_client"), "serve")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.serving import server

    sys.stderr = guard.Expendable(sys.stderr)
    compiled_programs.keep(os.environ)
    server.serve(options, tell=tell)


def report(values: dict[str, Any], overrides: Overrides) -> None:
    """Write the page and print its path."""
    options = command_line.options_of(ReportOptions, values, search=search_options(values, overrides))
    packages.check_installed("a report", ("altair", "jinja2", "vl_convert"), "report")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.reporting.report import report
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(options.output, "--output")
    compiled_programs.keep(os.environ)
    place = report(options, when=time.strftime("%Y-%m-%d %H:%M"), tell=tell)
    print(f"written: {place}")  # noqa: T201


def shortlist(values: dict[str, Any], overrides: Overrides) -> None:
    """Learn the shortlist and write it."""
    options = command_line.options_of(ShortlistOptions, values)
    places, others = places_of_corpus(overrides)
    command_line.refuse_overrides(others, "a shortlist")
    with ended_by_signals():
        from convs2s_jax.data import corpora
        from convs2s_jax.training.run import outputs, run_folder, store_copy
        from convs2s_jax.translation import shortlists
        from convs2s_jax.translation.jobs import output
        from convs2s_jax.translation.trained import moved

    outputs.check_outside_runs(options.output, "--output")
    path = Path(options.output or joined(options.workdir, shortlists.NAME))
    with store_copy.reading(options.workdir, tell) as (workdir, told):
        if options.output or workdir.is_dir():  # a missing workdir is reported below
            output.check_writable(str(path))
        if options.output and workdir.is_dir():
            data = moved(run_folder.load_config(workdir, given_as="--workdir").data, places)
            whose = f"a file of the corpus of --workdir={options.workdir}"
            output.check_not_overwriting(str(path), corpora.files_of(data), whose)
        made, vocabularies = shortlists.make(
            workdir,
            words=options.words,
            frequent=options.frequent,
            iterations=options.iterations,
            pairs=options.pairs,
            places=places,
            tell=told,
        )
        shortlists.save(made, vocabularies, path)
    each = len(made.words) / max(1, len(made.offsets) - 1)
    tell(f"{path}: {each:.1f} target words per source word, and {len(made.always)} for every sentence")


def average(values: dict[str, Any], overrides: Overrides) -> None:
    """Average the checkpoints and write the workdir."""
    options = command_line.options_of(AverageOptions, values)
    check_no_comma("--output", options.output)
    command_line.refuse_overrides(overrides, "an average")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.translation.averaging import write_average

    compiled_programs.keep(os.environ)
    write_average(options.workdir, options.output, options.checkpoint, tell)


def import_fairseq(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert a checkpoint to a workdir."""
    options = command_line.options_of(FairseqImport, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.importing import import_checkpoint

    import_checkpoint(options, overrides, tell)


def export(values: dict[str, Any], overrides: Overrides) -> None:
    """Export programs or, if the end of --output is that of a fairseq checkpoint, one of those."""
    fairseq = values.get("output", "").endswith(FAIRSEQ)
    fields = [*fields_of(FairseqExport)] if fairseq else [*fields_of(ProgramExport), *SEARCH.fields]
    for name in {*values} - {field.name for field in fields}:
        kind = f"{FAIRSEQ} at the end of --output means a fairseq checkpoint"
        raise UserError(f"--{name} is a flag of the other kind of export ({kind}): remove it")
    if fairseq:
        command_line.refuse_overrides(overrides, "an export")
        order = command_line.options_of(FairseqExport, values)
        with ended_by_signals():
            from convs2s_jax.interop.fairseq.exporting import export_checkpoint
            from convs2s_jax.training.run import outputs

        outputs.check_outside_runs(order.output, "--output")
        export_checkpoint(order, tell)
        return
    programs = command_line.options_of(ProgramExport, values)
    search = search_options(values, overrides)
    packages.check_installed("exporting", ("flatbuffers", "safetensors"), "export")
    with ended_by_signals():
        from convs2s_jax.interop.programs.exporting import export_programs
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(programs.output, "--output")
    export_programs(programs, search, tell)


SERVE = Command(
    about="""
Serve translations over HTTP:

  {program} --workdir=DIR [--port=8080] [--beam_sizes=5,1] [--flag=value ...]

POST /translate accepts JSON such as {{"lines": ["April 4, 1989"]}}. GET / is a web page for translating, /docs
documents the API, /health and /ready are health checks, and /metrics is for Prometheus (docs/serving.md).
""",
    groups=(Group("Options", ServeOptions, leave_out=("search",)), SEARCH),
    main=serve,
    stores=("workdir", "shortlist"),
    memory="use a smaller --batch_size, --max_tokens or beam size (--beam_sizes)",
)
REPORT = Command(
    about="""
Write an HTML page about a run, or about several runs side by side:

  {program} --workdir=A[,B,...] [--output=DIR] [--lines=500] [--flag=value ...]

The page DIR/index.html is a single file that needs no network. It shows the runs, curves, samples, translations of the
test set with scores and significance tests, and attention (docs/report.md). Workdirs are only read.
""",
    groups=(Group("Options", ReportOptions, leave_out=("search",)), SEARCH),
    main=report,
    stores=("workdir",),
    memory="use a smaller --batch_size, --beam_size or number of --lines",
)
SHORTLIST = Command(
    about="""
Learn a lexical shortlist, the likely target words of each source word, from the training text of a run:

  {program} --workdir=DIR [--words=50] [--frequent=100]

Decoding with --shortlist=DIR/shortlist then computes the softmax only over the likely words of each sentence
(docs/decoding.md). If the training text has moved, set --config.data.dir or --config.data.files to its new place.
""",
    groups=(Group("Options", ShortlistOptions),),
    main=shortlist,
    stores=("workdir",),
    memory="learn from fewer --pairs",
)
AVERAGE = Command(
    about="""
Average several checkpoints of a run into a new workdir with a single checkpoint:

  {program} --workdir=DIR --checkpoint=last:2 --output=NEW

Decoding, serving, exporting and reporting use it like any other workdir. To start a new run from it, set
--config.training.finetune_from=NEW (docs/decoding.md).
""",
    groups=(Group("Options", AverageOptions),),
    main=average,
    stores=("workdir",),
    memory="average fewer checkpoints with --checkpoint",
)
IMPORT = Command(
    about="""
Import a fairseq checkpoint:

  {program} --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config.path.to.field=value ...]

The new workdir serves for decoding and further training (docs/fairseq.md).
""",
    groups=(Group("Options", FairseqImport),),
    main=import_fairseq,
)
EXPORT = Command(
    about="""
Export a model:

  {program} --workdir=DIR --output=FOLDER [--flag=value ...]

writes a folder with programs for CPU, GPU and TPU, parameters (safetensors), vocabularies and translate.py, which runs
without this package (docs/export.md).

  {program} --workdir=DIR --output=FILE.pt [--flag=value ...]

writes a checkpoint that fairseq loads, with the dictionaries next to it (docs/fairseq.md).
""",
    groups=(
        Group("Options", ProgramExport),
        Group("Options of a fairseq checkpoint", FairseqExport, leave_out=("workdir", "output")),
        SEARCH,
    ),
    main=export,
    stores=("workdir",),
)
