"""Selection of the best validation so far, by the score that `training.best_metric` sets."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from convs2s_jax.metrics.scoring import METRICS

Scores = Mapping[str, float]
"""What a validation measured: "loss" (nats per token), and the scores of its outputs (in percent)."""

LOSS = "loss"
LESS_IS_BETTER = frozenset(
    {LOSS, *(key for metric in METRICS.values() if metric.less_is_better for key in metric.keys)}
)
"""Scores where lower is better."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The best validation so far.

    Attributes:
      metric: the score that is compared.
      value: its best value; None before the first validation.
      step: of that validation.
      waiting: number of validations since.
    """

    metric: str = LOSS
    value: float | None = None
    step: int = 0
    waiting: int = 0


def validated(best: Best, metric: str, scores: Scores, *, step: int) -> Best:
    """Return the best validation after a new one. Metrics are not compared with each other: a new one starts over."""
    if best.metric != metric:
        best = Best(metric)
    value = scores.get(metric, math.nan)
    if math.isfinite(value) and (best.value is None or _rank(metric, value) > _rank(metric, best.value)):
        return Best(metric, value, step)
    return dataclasses.replace(best, waiting=best.waiting + 1)


def ended(best: Best, metric: str, patience: int | None) -> str:
    """Return why training is over after `patience` validations without a better one, or ""."""
    if patience is None or best.metric != metric or best.waiting < patience:
        return ""
    if best.value is None:
        return f"training.patience is {patience}: no validation had a finite {metric}"
    order = "lower" if metric in LESS_IS_BETTER else "higher"
    since = f"since step {best.step} had a {order} {metric} than its {best.value:.4f}"
    return f"training.patience is {patience}: no scheduled validation {since}"


def counting(measured: Iterable[Scores], metric: str) -> str:
    """Return the metric by which validations are compared: `metric`, or the loss if none of them measured it."""
    return metric if any(metric in scores for scores in measured) else LOSS


def best_of(known: Mapping[int, Scores], steps: Iterable[int], metric: str) -> int | None:
    """Return the best of some steps by the metric that is `counting`, the first of equal ones; None if none has it.

    A run that continues with another metric keeps the best by loss until a validation has the new score.
    """
    measured = {step: known[step] for step in steps if step in known}
    one = counting(measured.values(), metric)
    ranks = [(_rank(one, scores[one]), -step) for step, scores in measured.items() if one in scores]
    return -max(ranks)[1] if ranks else None


def _rank(metric: str, value: float) -> float:
    """The value as a rank, where higher is better."""
    return -value if metric in LESS_IS_BETTER else value
