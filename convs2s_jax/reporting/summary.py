"""Facts about a run for a table: model, training data, results, and how training ended."""

import re
from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import counted
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.reporting.charts import QUANTITIES
from convs2s_jax.reporting.runs import Run
from convs2s_jax.training.run.selection import best_of, counting


def facts(run: Run) -> list[tuple[str, str]]:
    """Facts about a run as (name, value), without those that are not known."""
    known, cfg = run.facts, run.cfg
    source, target = ("text", "label") if cfg.classifies else ("source", "target")
    optimizer, *schedule = (
        ", ".join(f"{name} {value}" for name, value in to_dict(part).items())
        for part in (cfg.training.optimizer, cfg.training.schedule)
    )
    best, test = best_step(run), report_on_test_set(run)
    found = [
        ("Workdir", run.place),
        ("Model", model(cfg.model)),
        ("Parameters", f"{known.parameters:,}" if known.parameters else ""),
        (
            "Vocabularies",
            f"{{}} {source} and {{}} {target} entries".format(*known.vocabularies) if any(known.vocabularies) else "",
        ),
        ("Data", f"{cfg.data.corpus} ({' to '.join(filter(None, (cfg.data.src, cfg.data.tgt)))})"),
        (f"Training {cfg.examples}", known.examples),
        ("Batches", known.batches),
        ("Devices and versions", known.devices),
        ("Optimiser", f"{optimizer}, clip {cfg.training.clip:g}, seed {cfg.seed}"),
        ("Schedule", *schedule),
        ("Learning rate", "; ".join(known.rates)),
        ("Started from", known.origin or cfg.training.finetune_from or ""),
        ("First start", f"{known.begun}, of {counted(known.starts, 'start')}" if known.starts else ""),
        ("Time since the last start", known.time),
        (f"Best validation by {_metric(run)}", "" if best is None else _scores(_validations(run)[best], best)),
        ("Test set", _scores(test, test["step"]) if test else ""),
        ("End", ending(run)),
    ]
    return [(name, value) for name, value in found if value]


def best_step(run: Run) -> int | None:
    """The step of the best validation, by the metric that selects the best checkpoint; None without validation."""
    known = _validations(run)
    return best_of(known, known, _metric(run))


def report_on_test_set(run: Run) -> Mapping[str, Any] | None:
    """The test set report at the step of the best validation, or else the last one; None without any."""
    reports = [record for record in run.reports_of("test") if record.get("loss") is not None]
    own = [record for record in reports if record["step"] == best_step(run)]
    return next(iter([*own[-1:], *reports[-1:]]), None)


def ending(run: Run) -> str:
    """How training ended, or that it is in progress; "" without facts.json."""
    known = run.facts
    if run.derived:
        return f"{run.derived}; nothing was trained here"
    if run.trainer:
        return f"in progress ({run.trainer})"
    if re.fullmatch("SIG[A-Z]+", known.why):
        return f"{known.stopped}: {known.why}; run the same command to continue"
    if known.stopped:
        return f"{known.stopped}: {known.why}"
    return "not recorded: training is running elsewhere or was killed" if known.starts else ""


def model(cfg: Any) -> str:
    """The kind of a model, or those of its encoder and decoder with their layers."""
    if isinstance(cfg, ModelConfig):
        return f"encoder {_side(cfg.encoder)}, decoder {_side(cfg.decoder)}"
    features: Any = getattr(cfg, "features", None)
    return str(cfg.kind) + (f", features {features.kind}" if features is not None else "")


def _side(side: Any) -> str:
    layers = getattr(side, "layers", None)
    count = len(layers) if isinstance(layers, tuple) else layers
    return side.kind + (f" ({counted(count, 'layer')})" if isinstance(count, int) else "")


def _metric(run: Run) -> str:
    return counting(_validations(run).values(), run.cfg.training.best_metric)


def _validations(run: Run) -> dict[int, dict[str, float]]:
    """The scores of each validation, by step."""
    return {
        record["step"]: {name: record[name] for name in QUANTITIES if record.get(name) is not None}
        for record in run.reports_of("valid")
    }


def _scores(record: Mapping[str, Any], step: int) -> str:
    """The scores of a report, such as "step 40: loss 2, BLEU 84.7"."""
    scores = (f"{QUANTITIES[name].title} {record[name]:.4g}" for name in QUANTITIES if record.get(name) is not None)
    return f"step {step:,}: {', '.join(scores)}"
