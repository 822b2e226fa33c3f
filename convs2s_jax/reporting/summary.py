"""A run in words: what it is, on what it was trained, and how it ended."""

from typing import Any

from convs2s_jax.models.config import ModelConfig
from convs2s_jax.reporting.curves import QUANTITIES
from convs2s_jax.reporting.runs import Run
from convs2s_jax.training.run.selection import LOSS, best_of, counting

UNKNOWN = "not recorded"


def paragraph(run: Run) -> str:
    """The run in a few sentences."""
    log = run.log
    size = f" of {log.parameters} parameters" if log.parameters else ""
    where, _, versions = log.devices.removesuffix(")").partition(" (")
    sentences = [f"A model{size}: {kind(run)}.", f"It was trained on {task(run)}" + (f", by {where}" if where else "")]
    sentences[-1] += f" ({versions})." if versions else "; the log names no versions."
    known = {
        record["step"]: {name: record[name] for name in QUANTITIES if record.get(name) is not None}
        for record in run.of("valid")
    }
    metric = counting(known.values(), run.cfg.training.best_metric)
    if (step := best_of(known, known, metric)) is not None:
        most = "lowest" if metric == LOSS else "highest"
        sentences.append(
            f"The {most} validation {_title(metric)} is {known[step][metric]:.4g}, at step {step:,}"
            f"{_scores(known[step], metric)}."
        )
    elif run.of("train"):
        sentences.append("No validation is reported.")
    if tests := [record for record in run.of("test") if record.get("loss") is not None]:
        sentences.append(f"On the test set the loss is {tests[-1]['loss']:.4g}{_scores(tests[-1], LOSS)}.")
    return " ".join([*sentences, reductions(run), ending(run)])


def reductions(run: Run) -> str:
    """How often the learning rate was reduced, and why: the first reason, and the last one."""
    rates = run.log.rates
    if not rates:
        return "The log names no reduction of the learning rate."
    times = {1: "once", 2: "twice"}.get(len(rates), f"{len(rates)} times")
    last = f"; the last time at {rates[-1]}" if len(rates) > 1 else ""
    return f"The learning rate was reduced {times}: at {rates[0]}{last}."


def ending(run: Run) -> str:
    """How the training ended, or that it goes on."""
    if run.trainer:
        return f"Training goes on: {run.trainer} works there."
    if run.log.stopped:
        return f"Training stopped at {run.log.stopped}: {run.log.why}."
    last = run.records[-1]["step"] if run.records else None
    reported = f"; the last report is of step {last:,}" if last is not None else ""
    return f"The log names no end: training goes on elsewhere, or it was killed{reported}."


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
    optimizer, rates = cfg.training.optimizer, cfg.training.schedule
    found = [
        ("Workdir", str(run.workdir)),
        ("Model", _capital(kind(run))),
        ("Parameters", log.parameters or UNKNOWN),
        ("Vocabularies", words),
        ("Data", task(run)),
        ("Training pairs", log.pairs or UNKNOWN),
        ("Devices and versions", log.devices or UNKNOWN),
        ("Optimiser and schedule", f"{optimizer.kind}, {rates.kind}; clip {cfg.training.clip:g}; seed {cfg.seed}"),
        ("Learning rate", "; ".join(log.rates) or "no reduction in the log"),
        ("Began, last line of the log", f"{log.begun}, {log.ended}" if log.begun else UNKNOWN),
        ("Starts", str(1 + log.continued)),
        ("End", ending(run)),
    ]
    return found + ([("Time of the last start", log.time)] if log.time else [])


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
