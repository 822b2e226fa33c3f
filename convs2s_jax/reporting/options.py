"""The options of a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from convs2s_jax.core.config import check
from convs2s_jax.core.places import scheme_of


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What a report is about: each field is a flag (docs/report.md).

    Attributes:
      workdir: folder of a training run, or its address in an object store; several (A,B) are shown over each other,
        and compared with the first.
      output: folder for the page index.html, and for translations that the next report uses again.
      split: held-out lines that are translated and scored.
      lines: most lines of it that are translated; 0 for none, which leaves scores, translations and attention out.
      attention: number of sentences whose attention is shown, layer by layer.
      resamples: test sets drawn for confidence intervals and paired tests.
      batch_size: most sentences in a batch.
      search: fields of `SearchConfig` that override each run's.
    """

    workdir: tuple[str, ...] = ()
    output: str = "report"
    split: Literal["valid", "test"] = "test"
    lines: int = 500
    attention: int = 6
    resamples: int = 1000
    batch_size: int = 64
    search: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(
            len(self.workdir) > 0 and all(self.workdir),
            "--workdir is missing: name a run, or several to compare, as in --workdir=runs/a,runs/b",
        )
        check(
            "lm_weight" not in self.search,
            "--lm_weight: a report translates without a language model; leave it out, or use convs2s decode --lm",
        )
        check(self.output != "", "--output is empty: name a folder, as in --output=report")
        for name, least in (("lines", 0), ("attention", 0), ("resamples", 2), ("batch_size", 1)):
            value = getattr(self, name)
            check(value >= least, f"--{name} is {value}: use {least} or more")
        output = Path(self.output).resolve()
        for workdir in filter(lambda each: not scheme_of(each), self.workdir):
            inside = Path(workdir).resolve()
            check(
                inside != output and inside not in output.parents,
                f"--output={self.output} lies in --workdir={workdir}: a report changes nothing there; name another "
                "folder",
            )
