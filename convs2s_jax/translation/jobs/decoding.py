"""Decode whole files: read, decode window by window, write, score."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tqdm import tqdm

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell
from convs2s_jax.core.guard import held_interrupts
from convs2s_jax.data import corpora
from convs2s_jax.metrics import scoring
from convs2s_jax.training.run import outputs, run_folder
from convs2s_jax.translation import arguments, shortlists
from convs2s_jax.translation.jobs import inputs, labelling, output, resuming
from convs2s_jax.translation.jobs.formats import FORMATS
from convs2s_jax.translation.jobs.job import Job, MakeJob
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.work import Work, dependencies_of, read_work
from convs2s_jax.translation.lines import translate
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.trained import moved
from convs2s_jax.translation.translator import Translator, fuse, load, precomputed


def decode(options: Options, *, tell: Tell) -> None:
    """Translate, score or label every line of a file, depending on the model and the options.

    Args:
      options: see `Options`.
      tell: receives warnings and scores.

    Raises:
      UserError: the input is invalid. Nothing has been written, unless the message says so.
      KeyboardInterrupt: the user interrupted decoding; only complete lines have been written.
    """
    scoring.check_metrics(options.metrics or scoring.DEFAULT, options.bleu_tokenize or "13a")
    output.check_writable(options.output)
    configs = [run_folder.load_config(Path(workdir), given_as=flag) for flag, workdir in options.runs]
    for (flag, workdir), cfg in zip(options.runs, configs, strict=True):
        outputs.check_not_of_run(options.output, workdir, flag)
        output.check_not_overwriting(
            options.output, corpora.files_of(moved(cfg.data, options.corpus)), f"the corpus of {flag}={workdir}"
        )
    job = JOBS[configs[0].model.kind](options, tell)
    total = len(job.lines)
    begun = resuming.read(options.output, job.dependencies, total) if options.resume else resuming.NOTHING
    texts = job.style.texts(begun.data)
    begin, odd = len(texts), list[int]()
    note = resuming.recorder(options.output, job.dependencies, begun, tell)
    if options.resume:
        what = "nothing left to do" if len(texts) == total else "continuing with the next line"
        tell(f"{options.output} already has {len(texts)} of {total} lines; {what}")
    with (
        output.opened(options.output, keep=len(begun.data), note=note) as write,
        tqdm(total=total, initial=len(texts), unit="line", disable=not sys.stderr.isatty()) as bar,
    ):
        try:
            while len(texts) < total:
                results = job.window(len(texts), bar.update)
                with held_interrupts():
                    write([job.style.render(result) for result in results])
                    texts += [result.best.text for result in results]
                job.warn(results)
                odd += [result.line for result in results if result.mostly_unknown]
        except KeyboardInterrupt:
            resumed = output.can_be_resumed(options.output)
            rest = "--resume continues after them" if resumed else "the rest was not translated"
            tell(f"interrupted: {len(texts)} of {total} lines are written; {rest}")
            raise
    _warn_of_unknown(job.name, odd, total - begin, tell)
    job.report(texts)


def translation(options: Options, tell: Tell) -> Job[Result]:
    """Return the job of translating or scoring the file given by the options."""
    translator = translator_of(options, tell)
    search = options.resolve(translator.cfg.search, attends=translator.attends)
    style = FORMATS["scores" if options.score and options.format == "text" else options.format]
    work = read_work(options, translator, search, tell, attention=style.alignments)
    request, references = work.request, work.references
    if request.targets is None and request.lines:
        arguments.check_memory(translator, search, min(options.batch_size, len(request.lines)))

    def window(first: int, progress: Callable[[int], None]) -> list[Result]:
        results = translate(translator, request.part(first, options.window), progress=progress)
        return [replace(one, reference=references[0][one.line]) for one in results] if references else results

    return Job(
        name=work.name,
        lines=request.lines,
        dependencies=dependencies_of(options, translator, search, work),
        style=style,
        window=window,
        warn=lambda results: warn(work.name, results, tell),
        report=lambda texts: report(options, translator, work, texts, tell),
    )


JOBS: Mapping[str, MakeJob] = MappingProxyType({"encoder_decoder": translation, "classifier": labelling.job})
"""The job factory for each kind of model."""


def translator_of(options: Options, tell: Tell) -> Translator:
    """Load the model or ensemble, and the language model, given by the options, ready for decoding."""
    workdirs = [Path(workdir) for workdir in options.workdir]
    options.resolve(run_folder.load_config(workdirs[0]).search)  # so that a mistake is reported before the model loads
    inputs.check_present(options)
    translator = load(workdirs, steps=options.checkpoint, dtype=options.dtype, tell=tell, given_as="--workdir")
    if options.lm:
        lm = load(Path(options.lm), dtype=options.dtype, tell=tell, given_as="--lm")
        fused = fuse(translator, lm, names=(options.workdir[0], options.lm))
        translator = fused if options.search["lm_weight"] else translator
    if options.shortlist:
        check(
            translator.reads_source,
            f"--shortlist with a language model: --workdir={options.workdir[0]} reads no source, and a shortlist lists "
            "likely words of the source; leave it out",
        )
        path = Path(options.shortlist)
        translator = replace(translator, shortlist=shortlists.load(path, translator.vocabularies))
    return precomputed(translator, int8=options.int8)


def warn(name: str, results: Sequence[Result], tell: Tell) -> None:
    """Warn about lines that were truncated or have no translation."""
    for result in results:
        where = f"{name}, line {result.line + 1}"
        if result.best.score == float("-inf"):
            tell(f"{where}: no translation was found, because its scores are not finite or no word is allowed")
        if result.cut:
            tell(arguments.left_out(where, result.cut))


def _warn_of_unknown(name: str, lines: Sequence[int], total: int, tell: Tell) -> None:
    """Warn about lines, numbered from 0, whose source is mostly unknown to the model."""
    if lines:
        first = ", ".join(str(line + 1) for line in lines[:5]) + (" ..." if len(lines) > 5 else "")
        tell(
            f"{name}: {len(lines)} of {total} lines are mostly unknown to the source vocabulary, and their output is a "
            f"guess: line {first}"
        )


def report(options: Options, translator: Translator, work: Work, texts: Sequence[str], tell: Tell) -> None:
    """Print examples, and the scores of the whole file against the references."""
    references = work.references
    for i, (source, text) in enumerate(zip(work.request.lines[: options.show], texts, strict=False)):
        tell(f"  source      {source}\n  translation {text}")
        tell(f"  reference   {references[0][i]}\n" if references is not None else "")
    if references is not None:
        own = translator.cfg.training
        metrics, tokenize = options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize
        tell(scoring.report(scoring.score(texts, references, metrics=metrics, bleu_tokenize=tokenize)))
        if hint := scoring.hint(references[0], metrics=metrics, bleu_tokenize=tokenize, flag="--bleu_tokenize"):
            tell(hint)
