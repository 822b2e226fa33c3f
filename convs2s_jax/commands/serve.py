"""`convs2s serve`: serve translations over HTTP."""

import functools
import os
import sys
from typing import Any

from convs2s_jax.commands.decode import SEARCH, search_options
from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line, guard, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.serving.options import ServeOptions

ABOUT = """
Serve translations over HTTP:

  {program} --workdir=DIR [--port=8080] [--beam_sizes=5,1] [--flag=value ...]

POST /translate accepts JSON such as {{"lines": ["April 4, 1989"]}}. GET / is a web page for translating, /docs
documents the API, /health and /ready are health checks, and /metrics is for Prometheus (docs/serving.md).
"""
NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Serve until a signal arrives."""
    options = command_line.options_of(ServeOptions, values, search=search_options(values, overrides))
    packages.check_installed("serving", NEEDED, "serve")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.serving import server

    sys.stderr = guard.Expendable(sys.stderr)
    compiled_programs.keep(os.environ)
    server.serve(options, tell=tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", ServeOptions, leave_out=("search",)), SEARCH),
    main=main,
    stores=("workdir", "shortlist"),
    memory="use a smaller --batch_size, --max_tokens or beam size (--beam_sizes)",
)
console = functools.partial(command_line.run, COMMAND)
