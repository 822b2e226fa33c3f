"""The options of a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from convs2s_jax.core.config import check
from convs2s_jax.core.places import resolved


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of a report. Each field is a flag (docs/report.md).

    Attributes:
      workdir: folder of a training run, or its address in an object store; several (A,B) share the charts and are
        compared with the first.
      output: folder for the page index.html.
      split: held-out lines that are translated and scored.
      lines: maximum number of lines to translate; 0 for none, which omits scores, translations and attention.
      batch_size: maximum number of sentences per batch.
      search: fields of `SearchConfig` that override those of each run.
    """

    workdir: tuple[str, ...] = ()
    output: str = "report"
    split: Literal["valid", "test"] = "test"
    lines: int = 500
    batch_size: int = 64
    search: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(
            len(self.workdir) > 0 and all(self.workdir),
            "--workdir is missing; specify a run, or several to compare, as in --workdir=runs/a,runs/b",
        )
        check(
            "lm_weight" not in self.search,
            "--lm_weight: a report translates without a language model; remove it, or use convs2s decode --lm",
        )
        check(self.output != "", "--output is empty; specify a folder, as in --output=report")
        check(self.lines >= 0, f"--lines is {self.lines}; use 0 or more")
        check(self.batch_size >= 1, f"--batch_size is {self.batch_size}; use 1 or more")
        for workdir in self.workdir:
            check(
                not f"{resolved(self.output)}/".startswith(f"{resolved(workdir)}/"),
                f"--output={self.output} is inside --workdir={workdir}, which a report does not modify; choose another "
                "folder",
            )
