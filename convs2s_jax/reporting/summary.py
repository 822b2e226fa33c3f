"""A run in words: what it is, on what it was trained, and how it ended."""

import re
from collections.abc import Mapping
from typing import Any

from convs2s_jax.models.config import ModelConfig
from convs2s_jax.reporting import learning_rate
from convs2s_jax.reporting.curves import QUANTITIES
from convs2s_jax.reporting.runs import Run
from convs2s_jax.training.run.selection import LESS_IS_BETTER, LOSS, Validation, best_of, counting

UNKNOWN = "not recorded"
_SIGNAL = re.compile("SIG[A-Z]+")
"""Why a training stopped that was told to."""


def paragraph(run: Run) -> str:
    """The run in a few sentences."""
    log = run.log
    size = f" of {log.parameters} parameters" if log.parameters else ""
    where, _, versions = log.devices.removesuffix(")").partition(" (")
    sentences = [f"A model{size}: {kind(run)}.", f"It was trained on {task(run)}" + (f", by {where}" if where else "")]
    if run.derived:
        return f"{sentences[0]} {ending(run)}"
    sentences[-1] += f" ({versions})." if versions else "; the log names no versions." if log.starts else "."
    if origin := began_with(run):
        sentences.append(f"It began with the parameters of {origin}.")
    known, step = _validations(run), best_step(run)
    if step is not None:
        metric = counting(known.values(), run.cfg.training.best_metric)
        most = "lowest" if metric in LESS_IS_BETTER else "highest"
        sentences.append(
            f"The {most} validation {_title(metric)} is {known[step][metric]:.4g}, at step {step:,}"
            f"{_scores(known[step], metric)}."
        )
    elif run.of("train"):
        sentences.append("No validation is reported.")
    if test := tested(run):
        sentences.append(
            f"On the test set the loss of step {test['step']:,} is {test['loss']:.4g}{_scores(test, LOSS)}."
        )
        if step not in (None, test["step"]):
            sentences.append(f"The best on validation, step {step:,}, has no test score.")
    return " ".join([*sentences, learning_rate.sentences(run), ending(run)])


def best_step(run: Run) -> int | None:
    """The step of the best validation, by the metric that tells the best checkpoint; None without one."""
    known = _validations(run)
    found = {
        record["step"]: Validation(known[record["step"]], bool(record.get("scheduled", True)))
        for record in run.of("valid")
    }
    steps = {record["step"] for record in run.records}  # one that was not scheduled counts at the end of the run
    return best_of(found, steps, counting(known.values(), run.cfg.training.best_metric))


def tested(run: Run) -> Mapping[str, Any] | None:
    """The report on the test set: that of the best validation's step, or the last one; None where there is none."""
    reports = [record for record in run.of("test") if record.get("loss") is not None]
    own = [record for record in reports if record["step"] == best_step(run)]
    return next(iter([*own[-1:], *reports[-1:]]), None)


def ending(run: Run) -> str:
    """How the training ended, or that it goes on."""
    log = run.log
    if run.derived:
        return f"It is {run.derived}: nothing was trained here."
    if run.trainer:
        return f"Training goes on: {run.trainer} works there."
    if _SIGNAL.fullmatch(log.why):
        return f"Training was stopped by {log.why} at {log.stopped}; the same command continues it."
    if log.stopped:
        return f"Training stopped at {log.stopped}: {log.why}."
    last = run.records[-1]["step"] if run.records else None
    reported = f"; the last report is of step {last:,}" if last is not None else ""
    if not log.starts:
        return f"There is no readable log, so how it ended is not known{reported}."
    return f"The log names no end: training goes on elsewhere, or it was killed{reported}."


def began_with(run: Run) -> str:
    """Whose parameters a fine-tuned run began with: "step 441 of runs/base"; "" for random ones.

    The log says so; the configuration is asked where there is none.
    """
    other = run.cfg.training.finetune_from
    return run.log.origin if run.log.begun else f"a checkpoint of {other}" if other else ""


def kind(run: Run) -> str:
    """The model: its encoder and decoder with their layers, or its kind."""
    model = run.cfg.model
    if not isinstance(model, ModelConfig):
        features: Any = getattr(model, "features", None)
        return f"a {model.kind}" + (f" with features of kind {features.kind}" if features is not None else "")
    if not model.reads_source:
        return f"a language model with a decoder of kind {_side(model.decoder)}"
    return f"an encoder of kind {_side(model.encoder)} and a decoder of kind {_side(model.decoder)}"


def task(run: Run) -> str:
    """The corpus and its sides."""
    data = run.cfg.data
    sides = " to ".join(side for side in (data.src, data.tgt) if side)
    return data.corpus + (f" ({sides})" if sides else "")


def facts(run: Run) -> list[tuple[str, str]]:
    """(what, value) of a run, for a table."""
    log, cfg = run.log, run.cfg
    words = f"{log.source_words} source and {log.target_words} target entries" if log.source_words else UNKNOWN
    counted = "Training pairs", log.pairs or UNKNOWN
    if cfg.classifies:  # the log is in the words of translation
        words = words.replace(" source", " entries of texts").replace(" target entries", " of labels")
        counted = "Training texts", re.sub(r"(\d+) source or \d+ target tokens", r"\1 tokens", counted[1])
    optimizer, schedule = cfg.training.optimizer, cfg.training.schedule
    rates = [learning_rate.by_update(schedule), *(change.sentence for change in log.rates)]
    no_rate = "no change in the log" if log.starts else UNKNOWN
    found = [
        ("Workdir", run.place),
        ("Model", _capital(kind(run))),
        ("Parameters", log.parameters or UNKNOWN),
        ("Vocabularies", words),
        ("Data", task(run)),
        counted,
        ("Devices and versions", log.devices or UNKNOWN),
        ("Optimiser and schedule", f"{optimizer.kind}, {schedule.kind}; clip {cfg.training.clip:g}; seed {cfg.seed}"),
        ("Learning rate", "; ".join(rate for rate in rates if rate) or no_rate),
        ("Began, last line of the log", f"{log.begun}, {log.ended}" if log.begun else UNKNOWN),
        ("Starts", str(log.starts or UNKNOWN)),
        ("End", ending(run)),
    ]
    more = [("Began with", began_with(run)), ("Time of the last start", log.time)]
    return found + [(what, value) for what, value in more if value]


def _validations(run: Run) -> dict[int, dict[str, float]]:
    """Step -> what a validation measured there."""
    return {
        record["step"]: {name: record[name] for name in QUANTITIES if record.get(name) is not None}
        for record in run.of("valid")
    }


def _side(side: Any) -> str:
    """A kind with its number of layers, where it has a list of them."""
    layers = getattr(side, "layers", None)
    count = len(layers) if isinstance(layers, tuple) else layers if isinstance(layers, int) else None
    return side.kind + (f" ({count} layer{'s' if count != 1 else ''})" if count else "")


def _scores(record: Any, named: str) -> str:
    """The scores of a report but for the one that is `named` already: ", BLEU 84.7"."""
    names = [name for name in QUANTITIES if name not in (named, "perplexity") and record.get(name) is not None]
    return "".join(f", {_title(name)} {record[name]:.4g}" for name in names)


def _title(name: str) -> str:
    return LOSS if name == LOSS else QUANTITIES[name].title


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
