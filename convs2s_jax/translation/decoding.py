"""Decoding of whole files: read, decode window by window, write, score."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tqdm import tqdm

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.metrics import scoring
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import inputs, labelling, output
from convs2s_jax.translation.formats import FORMATS, Format, Written
from convs2s_jax.translation.job import Job, MakeJob, Tell
from convs2s_jax.translation.lines import score, translate
from convs2s_jax.translation.options import Options
from convs2s_jax.translation.results import Result
from convs2s_jax.translation.translator import Translator, fuse, load, precomputed


@dataclass(frozen=True)
class Work:
    """The lines of a file and the per-line requests.

    Attributes:
      name: name of the source, for messages.
      lines: source lines.
      references: one or several lists, each with a text for every line; None for no scores.
      prefix: for each line, words that its translation must begin with.
      constraints: for each line, phrases that its translation must contain.
      targets: given translations to score, instead of a search.
      dictionary: source word -> target word, to replace unknown words.
    """

    name: str
    lines: Sequence[str]
    references: Sequence[Sequence[str]] | None = None
    prefix: Sequence[str] | None = None
    constraints: Sequence[Sequence[str]] | None = None
    targets: Sequence[str] | None = None
    dictionary: Mapping[str, str] | None = None


def decode(options: Options, *, tell: Tell) -> None:
    """Translate, score or label every line of a file, depending on the model and the options.

    Args:
      options: see `Options`.
      tell: receives warnings and scores.

    Raises:
      UserError: invalid input. Nothing has been written, unless the message says so.
      KeyboardInterrupt: raised by the user; only complete lines have been written.
    """
    check_early(options)
    job = JOBS[run_folder.load_config(Path(options.workdir[0])).model.kind](options, tell=tell)
    written = read_back(options, job.style, job.lines)
    total, texts = len(job.lines), written.texts
    if options.resume:
        what = "nothing is left to do" if len(texts) == total else "going on with the next"
        tell(f"{options.output} has {len(texts)} of {total} lines: {what}")
    with (
        output.opened(options.output, keep=written.size) as write,
        tqdm(total=total, initial=len(texts), unit="line", disable=not sys.stderr.isatty()) as bar,
    ):
        try:
            while len(texts) < total:
                results = job.window(len(texts), bar.update)
                with output.held_interrupts():
                    write([job.style.render(result) for result in results])
                    texts += [result.best.text for result in results]
                job.warn(results)
        except KeyboardInterrupt:
            rest = "--resume continues after them" if options.output != "-" else "the rest was not translated"
            tell(f"interrupted: {len(texts)} of {total} lines are written; {rest}")
            raise
    job.report(texts)


def translation(options: Options, *, tell: Tell) -> Job[Result]:
    """The job of translating or scoring the file that the options name."""
    translator = translator_of(options, tell)
    search = options.resolve(translator.cfg.search, attends=translator.attends)
    work = read(options, translator, search)
    style = FORMATS["scores" if options.score and options.format == "text" else options.format]
    return Job(
        lines=work.lines,
        style=style,
        window=lambda first, progress: translate_window(options, translator, search, work, style, first, progress),
        warn=lambda results: warn(work.name, results, tell),
        report=lambda texts: report(options, translator, work, texts, tell),
    )


JOBS: Mapping[str, MakeJob] = MappingProxyType({"encoder_decoder": translation, "classifier": labelling.job})
"""The job factory of each kind of model."""


def translator_of(options: Options, tell: Tell) -> Translator:
    """The model, ensemble, and language model that the options name, ready for decoding."""
    workdirs = [Path(workdir) for workdir in options.workdir]
    translator = load(workdirs, steps=options.checkpoint, dtype=options.dtype, tell=tell)
    if options.lm:
        if not Path(options.lm).is_dir():
            raise UserError(f"--lm={options.lm}: there is no such folder; name the workdir of a language model")
        lm = load(Path(options.lm), dtype=options.dtype, tell=tell)
        fused = fuse(translator, lm, names=(options.workdir[0], options.lm))
        translator = fused if options.search["lm_weight"] else translator
    return precomputed(translator)


def check_early(options: Options) -> None:
    """Check what can be checked before a model is loaded."""
    scoring.check_metrics(options.metrics or scoring.DEFAULT, options.bleu_tokenize or "13a")
    output.check_writable(options.output)


def read(options: Options, translator: Translator, search: SearchConfig) -> Work:
    """Read and check the source lines and the files parallel to them."""
    if options.split and not translator.reads_source:
        raise UserError(
            f"--split={options.split} with a language model: it reads no source, so that nothing is translated; score "
            "texts with --score=FILE"
        )
    if options.split:
        text = parallel_text.read(translator.cfg.data, options.split)
        work = Work(options.split, text.src, [text.tgt])
    elif options.score and not translator.reads_source and options.input == "-":
        work = Work("no source", [""] * len(read_lines(options.score)))
    else:
        work = Work(options.input_name, read_lines(options.input))
    if not translator.reads_source:
        inputs.check_empty(work.name, work.lines)

    def parallel(path: str, what: str) -> list[str] | None:
        return inputs.read_parallel(path, work.lines, name=work.name, what=what) if path else None

    references = [found for path in options.reference if (found := parallel(path, "reference")) is not None]
    prefix = parallel(options.prefix, "prefix (an empty one requires nothing)")
    wanted = parallel(options.constraints, "constraints (an empty line requires nothing)")
    constraints = None if wanted is None else inputs.phrases_of(wanted)
    targets = parallel(options.score, "translation to score")
    if references or work.references:
        own = translator.cfg.training
        scoring.check_metrics(options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize)
    if references and not work.lines:
        raise UserError(f"{work.name} is empty: there are no sentences to score; give a text with its references")
    if prefix is not None or constraints is not None:
        inputs.check_fit(
            translator,
            search,
            work.lines,
            prefix=None if prefix is None else (options.prefix, prefix),
            constraints=None if constraints is None else (options.constraints, constraints),
        )
    if targets is not None:
        inputs.check_targets(translator, options.score, targets)
    return replace(
        work,
        references=references or work.references,
        prefix=prefix,
        constraints=constraints,
        targets=targets,
        dictionary=inputs.read_dictionary(options.unk_dictionary) if options.unk_dictionary else None,
    )


def read_back(options: Options, style: Format[Result], lines: Sequence[str]) -> Written:
    """The results that an interrupted run left in the output file."""
    path = Path(options.output)
    if not options.resume or not path.exists():
        return Written([], 0)
    if not path.is_file():
        raise UserError(f"--resume with --output={path}: what went into a pipe or device cannot be read back")
    try:
        return style.read(path.read_bytes(), lines, options.nbest)
    except UserError as error:
        raise UserError(
            f"--resume: {path} is not the beginning of this output: {error}. Give the same input and options, "
            "or begin anew without --resume"
        ) from error


def translate_window(
    options: Options,
    translator: Translator,
    search: SearchConfig,
    work: Work,
    style: Format[Result],
    first: int,
    progress: Callable[[int], None],
) -> list[Result]:
    """Results of the next `options.window` lines, starting at line `first`."""
    window = slice(first, first + options.window)
    lines = work.lines[window]

    if work.targets is not None:
        return score(
            translator,
            search,
            lines,
            work.targets[window],
            attention=style.alignments,
            first=first,
            batch_size=options.batch_size,
            batch_tokens=options.batch_tokens,
            progress=progress,
        )
    results = translate(
        translator,
        search,
        lines,
        nbest=options.nbest,
        prefix=work.prefix and work.prefix[window],
        constraints=work.constraints and work.constraints[window],
        replace_unk=options.replace_unk,
        unk_dictionary=work.dictionary,
        attention=style.alignments,
        seed=options.seed or 0,
        first=first,
        batch_size=options.batch_size,
        batch_tokens=options.batch_tokens,
        progress=progress,
    )
    if work.references is None:
        return results
    return [replace(result, reference=work.references[0][result.line]) for result in results]


def warn(name: str, results: Sequence[Result], tell: Tell) -> None:
    """Name the lines of which only the beginning could be translated, or nothing."""
    for result in results:
        where = f"{name}, line {result.line + 1}"
        if result.best.score == float("-inf"):
            tell(f"{where}: no translation was found: its scores are not finite, or no word is allowed")
        if result.cut:
            tell(f"{where}: the last {result.cut} tokens exceed the model's positions and are left out")


def report(options: Options, translator: Translator, work: Work, texts: Sequence[str], tell: Tell) -> None:
    """Report examples, and the scores of the whole file against the references."""
    references = work.references
    for i, (source, text) in enumerate(zip(work.lines[: options.show], texts, strict=False)):
        tell(f"  source      {source}\n  translation {text}")
        tell(f"  reference   {references[0][i]}\n" if references is not None else "")
    if references is not None:
        own = translator.cfg.training
        metrics, tokenize = options.metrics or own.metrics, options.bleu_tokenize or own.bleu_tokenize
        tell(scoring.report(scoring.score(texts, references, metrics=metrics, bleu_tokenize=tokenize)))
