"""Decode with a classifier: labels of text lines with their probabilities."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.data.unknown import is_mostly_unknown
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics import labels
from convs2s_jax.models.classifier.model import ClassifierConfig, ClassifierParams
from convs2s_jax.search.buckets import DEFAULT_BATCHING, Batching
from convs2s_jax.search.classify import classify
from convs2s_jax.translation import fit, trained
from convs2s_jax.translation.jobs import inputs, resuming
from convs2s_jax.translation.jobs.job import Job, Prompt, batching
from convs2s_jax.translation.jobs.label_formats import LABEL_FORMATS, Choice, Labelled
from convs2s_jax.translation.jobs.options import Options, flags
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Trained


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A trained classifier, ready for `label`.

    Attributes:
      model: model configuration.
      params: merged parameters.
      vocabularies: vocabularies of the texts and the labels.
    """

    model: ClassifierConfig
    params: ClassifierParams
    vocabularies: Vocabularies

    @property
    def labels(self) -> list[str]:
        """All labels, in the order of `classify`'s probabilities."""
        return [self.vocabularies.tgt.token(i) for i in range(len(SPECIAL), self.vocabularies.tgt.size)]


def from_trained(found: Trained) -> Classifier:
    """Return a trained model as a classifier.

    Raises:
      UserError: the model is not a classifier.
    """
    if not isinstance(found.cfg.model, ClassifierConfig):
        raise UserError(
            f"model.kind is '{found.cfg.model.kind}', which does not predict labels; use a run of a classifier"
        )
    return Classifier(found.cfg.model, found.params, found.vocabularies)


def label(
    classifier: Classifier,
    lines: Sequence[str],
    *,
    first: int = 0,
    batching: Batching = DEFAULT_BATCHING,
    progress: Callable[[int], None] | None = None,
) -> list[Labelled]:
    """Return all labels of each line with their probabilities, the most probable first; one result per line, in order.

    Args:
      classifier: from `from_trained`.
      lines: text; an empty line gets labels too.
      first: number of the first line.
      batching, progress: as in `lines.translate`.
    """
    texts = classifier.vocabularies.src
    sources = encode(texts, lines)
    found = classify(classifier.params, classifier.model, sources, batching=batching, progress=progress)
    names, room = classifier.labels, classifier.model.max_source - 1

    def choices(probabilities: np.ndarray) -> tuple[Choice, ...]:
        order = np.argsort(-probabilities, kind="stable")
        return tuple(Choice(names[i], float(str(probabilities[i]))) for i in order)

    return [
        Labelled(first + i, line, choices(p), max(0, len(ids) - room), is_mostly_unknown(line, ids, texts))
        for i, (line, ids, p) in enumerate(zip(lines, sources, found, strict=True))
    ]


def job(options: Options, tell: Tell) -> Job[Labelled]:
    """Return the job of labelling the file given by the options.

    Raises:
      UserError: options that apply to translation only, or files that cannot be read.
    """
    _check(options)
    inputs.check_present(options)
    run = trained.restore(Path(options.workdir[0]), options.checkpoint, options.dtype, tell)
    classifier = from_trained(run)
    if options.split:
        text = inputs.read_split(options, run, tell)
        name, lines, right = str(options.split), text.src, text.tgt
    else:
        name, lines, right = options.input_name, read_lines(options.input), None
    for path in options.reference:
        right = inputs.read_parallel(path, lines, name=name, what="label")
        check(len(lines) > 0, f"{name} is empty: there are no texts to score; use texts with their labels")

    def window(first: int, progress: Callable[[int], None]) -> list[Labelled]:
        part = lines[first : first + options.window]
        return label(classifier, part, first=first, batching=batching(options), progress=progress)

    return Job(
        name=name,
        lines=lines,
        dependencies={
            "--checkpoint": run.steps,
            "--dtype": run.cfg.model.dtype,
            **resuming.flags_of(options, resuming.FLAGS),
            "the model": run.fingerprint,
            "the input": resuming.digest_of(lines),
        },
        style=LABEL_FORMATS[options.format],
        window=window,
        warn=partial(_warn, name, tell),
        report=partial(_report, options.show, lines, right, tell),
    )


def prompt(options: Options, tell: Tell, *, width: int) -> Prompt[Labelled]:
    """Return the job of labelling typed lines; lines of fewer than `width` tokens share a compilation.

    Raises:
      UserError: as in `job`.
    """
    _check(options)
    classifier = from_trained(trained.restore(Path(options.workdir[0]), options.checkpoint, options.dtype, tell))

    def answer(number: int, line: str) -> Labelled:
        return label(classifier, [line], first=number, batching=Batching(size=1, min_width=width))[0]

    def compile() -> None:
        answer(0, "1")

    return Prompt(LABEL_FORMATS[options.format], compile, answer, partial(_warn, "standard input", tell))


def _check(options: Options) -> None:
    """Reject options that do not apply to labelling."""
    if len(options.workdir) > 1:
        raise UserError(
            f"--workdir has {len(options.workdir)} folders, but classifiers do not form ensembles; use only one"
        )
    if len(options.reference) > 1:
        raise UserError(f"--reference has {len(options.reference)} files, but a text has one label; use only one")
    if options.format not in LABEL_FORMATS:
        raise UserError(
            f"--format={options.format} is for translations only; for labels, use {' or '.join(LABEL_FORMATS)}"
        )
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if "translating" in field.metadata and value and value != field.default:
            names = flags(value) if field.name == "search" else f"--{field.name}"
            raise UserError(
                f"{names}: for translations only, but --workdir={options.workdir[0]} is a classifier; leave it out"
            )


def _warn(name: str, tell: Tell, results: Sequence[Labelled]) -> None:
    for result in results:
        if result.cut:
            tell(fit.left_out(f"{name}, line {result.line + 1}", result.cut, room="the model"))


def _report(show: int, lines: Sequence[str], right: Sequence[str] | None, tell: Tell, found: Sequence[str]) -> None:
    for i, (line, text) in enumerate(zip(lines[:show], found, strict=False)):
        tell(f"  text        {line}\n  label       {text}")
        tell(f"  reference   {right[i]}\n" if right is not None else "")
    if right:
        right = [line.strip() for line in right]
        tell(f"accuracy    {labels.accuracy(found, right):6.2f}  % of {counted(len(right), 'text')}")
        tell(f"macro F1    {labels.macro_f1(found, right):6.2f}")
        for name, value in labels.f1(found, right).items():
            tell(f"F1          {value:6.2f}  {name}")
