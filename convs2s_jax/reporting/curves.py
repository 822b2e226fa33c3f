"""Curves from the numbers in metrics.jsonl."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from convs2s_jax.reporting.runs import Run

MOST = 1000
"""Maximum number of points per run and curve."""


class Point(NamedTuple):
    """A value from a report."""

    run: str
    split: str
    step: int
    value: float


@dataclass(frozen=True)
class Curve:
    """A quantity over the steps of all runs.

    Attributes:
      field: its name in metrics.jsonl.
      title: its display name.
      unit: unit of the values after scaling.
      points: points in order of run, split and step.
      left_out: number of reports that are not among the points.
    """

    field: str
    title: str
    unit: str
    points: tuple[Point, ...]
    left_out: int = 0


class Quantity(NamedTuple):
    """A field of metrics.jsonl.

    Attributes:
      title, unit: display names. {item} is what the run counts: target tokens, or the texts that a classifier labels.
      scale: factor from the value in the file to the unit.
    """

    title: str
    unit: str
    scale: float = 1.0


QUANTITIES = {
    "loss": Quantity("Loss", "nats per {item}"),
    "perplexity": Quantity("Perplexity", "per {item}"),
    "bleu": Quantity("BLEU", "points"),
    "chrf": Quantity("chrF", "points"),
    "ter": Quantity("TER", "edits per 100 words; lower is better"),
    "exact_match": Quantity("Exact match", "% of sentences"),
    "rouge1": Quantity("ROUGE-1", "points"),
    "rouge2": Quantity("ROUGE-2", "points"),
    "rougel": Quantity("ROUGE-L", "points"),
    "d2l_bleu": Quantity("d2l.ai BLEU", "sentence average"),
    "accuracy": Quantity("Accuracy", "%"),
    "macro_f1": Quantity("Macro F1", "%"),
    "learning_rate": Quantity("Learning rate", "at the last update before a report"),
    "grad_norm": Quantity("Gradient norm", "mean before clipping"),
    "tokens_per_second": Quantity("Throughput", "{item}s per second"),
    "memory": Quantity("Memory", "GB in use on the device that uses most", 1e-9),
    "memory_peak": Quantity("Peak memory", "GB on the device that uses most", 1e-9),
    "mfu": Quantity("Model FLOPs utilisation", "% of the devices' peak", 100.0),
    "input_share": Quantity("Waiting for batches", "% of the time", 100.0),
    "skipped": Quantity("Skipped updates", "since the last report"),
}
"""All quantities, in the order of the page."""
EXPECTED = ("loss", "perplexity", "bleu", "learning_rate", "grad_norm", "tokens_per_second", "memory", "mfu")
"""Quantities that the page lists as missing if no run has reported them."""


def curves(runs: Sequence[Run]) -> list[Curve]:
    """The curves of every quantity that at least one run has reported."""
    found = []
    for field, quantity in QUANTITIES.items():
        points, left_out = [], 0
        for run in runs:
            for split in ("train", "valid", "test"):
                own = [
                    Point(run.name, split, record["step"], record[field] * quantity.scale)
                    for record in run.reports_of(split)
                    if isinstance(record.get(field), (int, float)) and math.isfinite(record[field])
                ]
                kept = thinned(own, MOST)
                left_out += len(own) - len(kept)
                points += kept
        if points:
            found.append(Curve(field, quantity.title, _unit(quantity, runs, points), tuple(points), left_out))
    return found


def _unit(quantity: Quantity, runs: Sequence[Run], points: Sequence[Point]) -> str:
    """The unit for the runs that have points, or all units if they differ."""
    drawn = {point.run for point in points}
    items = ("text" if run.cfg.classifies else "target token" for run in runs if run.name in drawn)
    return " or ".join(dict.fromkeys(quantity.unit.format(item=item) for item in items))


def missing(found: Sequence[Curve]) -> list[str]:
    """Titles of expected quantities that no run has reported."""
    return [QUANTITIES[field].title for field in EXPECTED if field not in {curve.field for curve in found}]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Keep about `most` points: the lowest and highest of each interval, and the first and last of all."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 2 - 1)
    kept = {0, len(points) - 1}
    for i in range(stretches):
        stretch = range(i * len(points) // stretches, (i + 1) * len(points) // stretches)
        kept |= {min(stretch, key=lambda j: points[j].value), max(stretch, key=lambda j: points[j].value)}
    return [points[i] for i in sorted(kept)]
