"""Decode with a classifier: labels of text lines with their probabilities."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.metrics import labels
from convs2s_jax.search.batching import Batching
from convs2s_jax.translation import arguments, trained
from convs2s_jax.translation.classifier import Labelled, from_trained, label
from convs2s_jax.translation.jobs import inputs, resuming
from convs2s_jax.translation.jobs.job import Job, Prompt, batching
from convs2s_jax.translation.jobs.label_formats import LABEL_FORMATS
from convs2s_jax.translation.jobs.options import Options, flags


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
            tell(arguments.left_out(f"{name}, line {result.line + 1}", result.cut, room="the model"))


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
