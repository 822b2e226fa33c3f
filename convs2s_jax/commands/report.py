"""`convs2s report`: write a report about runs."""

import functools
import os
import time
from typing import Any

from convs2s_jax.commands.decode import SEARCH, search_options
from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.reporting.options import ReportOptions

ABOUT = """
Write an HTML page about a run, or about several runs side by side:

  {program} --workdir=A[,B,...] [--output=DIR] [--lines=500] [--flag=value ...]

The page DIR/index.html is a single file that needs no network. It shows curves, samples, translations of the test set
with scores and significance tests, and attention (docs/report.md). Workdirs are only read.
"""
NEEDED = ("altair", "jinja2", "vl_convert")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Write the page and print its path."""
    options = command_line.options_of(ReportOptions, values, search=search_options(values, overrides))
    packages.check_installed("a report", NEEDED, "report")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.reporting.report import report
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(options.output, "--output")
    compiled_programs.keep(os.environ)
    place = report(options, when=time.strftime("%Y-%m-%d %H:%M"), tell=tell)
    print(f"written: {place}")  # noqa: T201


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ReportOptions, leave_out=("search",)), SEARCH),
    main=main,
    stores=("workdir", "output"),
    memory="use a smaller --batch_size, --beam_size or number of --lines",
)
console = functools.partial(command_line.run, COMMAND)
