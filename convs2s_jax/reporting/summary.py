"""Describe a run in words: model, training data, results, and how training ended."""

import re
from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.errors import counted
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.reporting.charts import QUANTITIES
from convs2s_jax.reporting.runs import Run
from convs2s_jax.training.run.reports.facts import RateChange
from convs2s_jax.training.run.selection import LESS_IS_BETTER, LOSS, Validation, best_of, counting
from convs2s_jax.training.schedule import AnySchedule, CosineConfig, FixedConfig, InverseSqrtConfig

UNKNOWN = "not recorded"
_SIGNAL = re.compile("SIG[A-Z]+")
"""The reason if training was stopped by a signal."""


def paragraph(run: Run) -> str:
    """Summarise a run in a few sentences."""
    size = f" with {run.facts.parameters:,} parameters" if run.facts.parameters else ""
    where, _, versions = run.facts.devices.removesuffix(")").partition(" (")
    sentences = [
        f"A model{size}: {kind(run)}.",
        f"It was trained on {task(run)}" + (f" using {where}" if where else ""),
    ]
    if run.derived:
        return f"{sentences[0]} {ending(run)}"
    sentences[-1] += f" ({versions})." if versions else "."
    if origin := began_with(run):
        sentences.append(f"Training started from the parameters of {origin}.")
    known, step = _validations(run), best_step(run)
    if step is not None:
        metric = counting(known.values(), run.cfg.training.best_metric)
        most = "lowest" if metric in LESS_IS_BETTER else "highest"
        sentences.append(
            f"The {most} validation {_title(metric)} is {known[step][metric]:.4g}, at step {step:,}"
            f"{_scores(known[step], metric)}."
        )
    elif run.reports_of("train"):
        sentences.append("No validation has been reported.")
    if test := report_on_test_set(run):
        sentences.append(
            f"On the test set, the loss at step {test['step']:,} is {test['loss']:.4g}{_scores(test, LOSS)}."
        )
        if step not in (None, test["step"]):
            sentences.append(f"The best checkpoint on validation, at step {step:,}, has no test score.")
    return " ".join([*sentences, rate_sentences(run), ending(run)])


def best_step(run: Run) -> int | None:
    """The step of the best validation, by the metric that selects the best checkpoint; None without validation."""
    known = _validations(run)
    found = {
        record["step"]: Validation(known[record["step"]], bool(record.get("scheduled", True)))
        for record in run.reports_of("valid")
    }
    # a validation that was not scheduled counts at the end of the run
    steps = {record["step"] for record in run.records}
    return best_of(found, steps, counting(known.values(), run.cfg.training.best_metric))


def report_on_test_set(run: Run) -> Mapping[str, Any] | None:
    """The test set report at the step of the best validation, or else the last one; None without any."""
    reports = [record for record in run.reports_of("test") if record.get("loss") is not None]
    own = [record for record in reports if record["step"] == best_step(run)]
    return next(iter([*own[-1:], *reports[-1:]]), None)


def ending(run: Run) -> str:
    """How training ended, or that it is in progress."""
    known = run.facts
    if run.derived:
        return f"It is {run.derived}; nothing was trained here."
    if run.trainer:
        return f"Training is in progress ({run.trainer})."
    if _SIGNAL.fullmatch(known.why):
        return f"Training was stopped by {known.why} at {known.stopped}; run the same command to continue."
    if known.stopped:
        return f"Training stopped at {known.stopped}: {known.why}."
    last = run.records[-1]["step"] if run.records else None
    reported = f"; the last report is from step {last:,}" if last is not None else ""
    if not known.starts:
        return f"There is no readable facts.json, so it is unknown how training ended{reported}."
    return f"No end is recorded, so training is running elsewhere or was killed{reported}."


def began_with(run: Run) -> str:
    """The origin of a fine-tuned run's parameters, such as "step 441 of runs/base"; "" for random initialisation.

    It is read from facts.json, or from the configuration if there is none.
    """
    other = run.cfg.training.finetune_from
    return run.facts.origin if run.facts.begun else f"a checkpoint of {other}" if other else ""


def kind(run: Run) -> str:
    """Describe the model: its encoder and decoder with their layers, or its kind."""
    model = run.cfg.model
    if not isinstance(model, ModelConfig):
        features: Any = getattr(model, "features", None)
        return f"a {model.kind}" + (f" with features of kind {features.kind}" if features is not None else "")
    if not model.reads_source:
        return f"a language model with a decoder of kind {_side(model.decoder)}"
    return f"an encoder of kind {_side(model.encoder)} and a decoder of kind {_side(model.decoder)}"


def task(run: Run) -> str:
    """Describe the corpus and its sides."""
    data = run.cfg.data
    sides = " to ".join(side for side in (data.src, data.tgt) if side)
    return data.corpus + (f" ({sides})" if sides else "")


def facts(run: Run) -> list[tuple[str, str]]:
    """Facts about a run as (name, value), for a table."""
    known, cfg = run.facts, run.cfg
    source, target = ("text", "label") if cfg.classifies else ("source", "target")
    words = f"{{}} {source} and {{}} {target} entries".format(*known.vocabularies) if known.vocabularies else UNKNOWN
    optimizer, schedule = cfg.training.optimizer, cfg.training.schedule
    rates = [by_update(schedule), *(change.sentence for change in known.rates)]
    no_rate = "no changes recorded" if known.starts else UNKNOWN
    found = [
        ("Workdir", run.place),
        ("Model", _capital(kind(run))),
        ("Parameters", f"{known.parameters:,}" if known.parameters else UNKNOWN),
        ("Vocabularies", words),
        ("Data", task(run)),
        (f"Training {cfg.examples}", known.examples or UNKNOWN),
        ("Devices and versions", known.devices or UNKNOWN),
        ("Optimiser and schedule", f"{optimizer.kind}, {schedule.kind}; clip {cfg.training.clip:g}; seed {cfg.seed}"),
        ("Learning rate", "; ".join(rate for rate in rates if rate) or no_rate),
        ("First start, end", f"{known.begun}, {known.ended or 'no end'}" if known.begun else UNKNOWN),
        ("Number of starts", str(known.starts or UNKNOWN)),
        ("End", ending(run)),
    ]
    more = [("Started from", began_with(run)), ("Time spent since the last start", known.time)]
    return found + [(what, value) for what, value in more if value]


def _validations(run: Run) -> dict[int, dict[str, float]]:
    """The scores of each validation, by step."""
    return {
        record["step"]: {name: record[name] for name in QUANTITIES if record.get(name) is not None}
        for record in run.reports_of("valid")
    }


def _side(side: Any) -> str:
    """The kind of an encoder or decoder, with its number of layers if it has one."""
    layers = getattr(side, "layers", None)
    count = len(layers) if isinstance(layers, tuple) else layers if isinstance(layers, int) else None
    return side.kind + (f" ({counted(count, 'layer')})" if count else "")


def _scores(record: Any, named: str) -> str:
    """The scores of a report except the one that was already `named`, such as ", BLEU 84.7"."""
    names = [name for name in QUANTITIES if name not in (named, "perplexity") and record.get(name) is not None]
    return "".join(f", {_title(name)} {record[name]:.4g}" for name in names)


def _title(name: str) -> str:
    return LOSS if name == LOSS else QUANTITIES[name].title


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def rate_sentences(run: Run) -> str:
    """Describe the schedule, and its first and its last change."""
    changes, said = run.facts.rates, by_update(run.cfg.training.schedule)
    if changes:
        times = {1: "once", 2: "twice"}.get(len(changes), f"{len(changes)} times")
        last = f"; the last time at {changes[-1].sentence}" if len(changes) > 1 else ""
        said += f" The learning rate was {changed(changes)} {times}: at {changes[0].sentence}{last}."
    nothing = "No change of the learning rate is recorded."
    if not run.facts.starts:
        nothing = "There is no readable facts.json, so it is unknown how the learning rate changed."
    return said.strip() or nothing


def by_update(cfg: AnySchedule) -> str:
    """Describe what a schedule changes at every update, which is not logged; "" if it changes nothing."""
    every = f"The {cfg.kind} schedule changes the learning rate at every update: it rises to"
    match cfg:
        case CosineConfig():
            fall = f"follows half a cosine down to {cfg.minimum:g} at step {cfg.steps:,}"
            return f"{every} {cfg.rate:g} until step {cfg.warmup:,} and then {fall}."
        case InverseSqrtConfig():
            return f"{every} {cfg.rate:g} until step {cfg.warmup:,} and then decays as 1 / sqrt(step)."
        case FixedConfig(warmup=warmup) if warmup:
            return f"The fixed schedule raises the learning rate at every update until step {warmup:,}."
        case _:
            return ""


def changed(changes: tuple[RateChange, ...]) -> str:
    """Whether rates were reduced, raised, or both."""
    if all(change.after < change.before for change in changes):
        return "reduced"
    return "raised" if all(change.after > change.before for change in changes) else "changed"
