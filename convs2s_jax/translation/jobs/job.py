"""Jobs on a file or on typed lines, for any kind of model. One loop processes a `Job`, another a `Prompt`.

R is the type of a line's result: a translation or a label.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from convs2s_jax.core.config import LARGEST
from convs2s_jax.core.errors import Tell
from convs2s_jax.search.batching import Batching
from convs2s_jax.translation.classifier import Labelled
from convs2s_jax.translation.jobs.formats import Format
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.resuming import Dependencies
from convs2s_jax.translation.results import Result

R = TypeVar("R", Result, Labelled)


class Job(NamedTuple, Generic[R]):
    """Work on a file (`translation.jobs.decoding`).

    Attributes:
      name: name of the source, for messages.
      lines: source lines.
      dependencies: everything that the bytes of the output depend on (`resuming.Dependencies`).
      style: how results are written and read back.
      window: (first, progress) -> results of the next lines, starting at line `first`. It calls `progress` with the
        number of lines done since the previous call.
      warn: (results) warns about lines that were truncated.
      report: (texts) prints examples, and scores if there are references; `texts` are the best text of every line.
    """

    name: str
    lines: Sequence[str]
    dependencies: Dependencies
    style: Format[R]
    window: Callable[[int, Callable[[int], None]], Sequence[R]]
    warn: Callable[[Sequence[R]], None]
    report: Callable[[Sequence[str]], None]


class Prompt(NamedTuple, Generic[R]):
    """Work on typed lines (`translation.jobs.interactive`).

    Attributes:
      style: how a result is written.
      compile: compiles the programs that answers need.
      answer: (number, line) -> the result of a line; numbers start at 0.
      warn: (results), as in a `Job`.
    """

    style: Format[R]
    compile: Callable[[], None]
    answer: Callable[[int, str], R]
    warn: Callable[[Sequence[R]], None]


MakeJob = Callable[[Options, Tell], Job[Any]]
"""Job factory for files: reads the file and the model given by the options. Each kind of model has one."""
MakePrompt = Callable[[Options, Tell], Prompt[Any]]
"""Job factory for typed lines: reads the model given by the options. Each kind of model has one."""


def batching(options: Options) -> Batching:
    """Return how lines are batched."""
    return Batching(size=min(options.batch_size, LARGEST), tokens=min(options.batch_tokens, LARGEST))
