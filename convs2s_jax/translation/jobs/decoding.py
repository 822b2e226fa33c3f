"""Decode whole files, window by window, or lines as they are typed."""

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convs2s_jax.core import local_copies
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data import corpora
from convs2s_jax.data.text_files import each_line
from convs2s_jax.data.unknown import commonest
from convs2s_jax.metrics import scoring
from convs2s_jax.training.run import outputs, run_folder, store_copy
from convs2s_jax.translation.jobs import output
from convs2s_jax.translation.jobs.job import JOBS, Job
from convs2s_jax.translation.jobs.options import READ, Options
from convs2s_jax.translation.trained import moved

PROMPT = "> "
KINDS = 20_000
"""Maximum number of different unknown words that are counted."""


def decode(options: Options, *, tell: Tell) -> None:
    """Translate, score or label every line of a file, or of what is typed, depending on the model and the options.

    Args:
      options: see `Options`.
      tell: receives warnings and scores.

    Raises:
      UserError: the input is invalid. Nothing has been written, unless the message says so.
      KeyboardInterrupt: the user interrupted decoding; only complete lines have been written.
    """
    with opened(options, tell) as (job, local, say):
        if local.interactive:
            _answer_typed(job, say)
        else:
            decode_lines(job, local.output, say, resume=local.resume)
            job.report()


@contextlib.contextmanager
def opened(options: Options, tell: Tell) -> Iterator[tuple[Job, Options, Tell]]:
    """Check the options and load the model.

    Yields:
      The job, the options with local copies of what is in object stores, and a `tell` that shows the addresses.

    Raises:
      UserError: the input is invalid. Nothing has been written.
    """
    scoring.check_metrics(options.metrics or scoring.DEFAULT, options.bleu_tokenize or "13a")
    outputs.check_outside_runs(options.output, "--output")
    with localised(options, tell) as (local, say):
        if not scheme_of(local.output):
            output.check_writable(local.output)
        configs = [run_folder.load_config(Path(workdir), given_as=flag) for flag, workdir in local.runs]
        for (flag, workdir), cfg in zip(local.runs, configs, strict=True):
            corpus = corpora.files_of(moved(cfg.data, local.corpus))
            output.check_not_overwriting(local.output, corpus, f"a file of the corpus of {flag}={workdir}")
        yield JOBS[configs[0].model.kind](local, say), local, say


@contextlib.contextmanager
def localised(options: Options, tell: Tell) -> Iterator[tuple[Options, Tell]]:
    """Replace addresses in object stores by local copies, which exist within the block.

    Yields:
      The new options, and a `tell` that shows the addresses.

    Raises:
      UserError: a store cannot be used, or a file is missing.
    """
    with contextlib.ExitStack() as stack:

        def copied(flag: str, place: str) -> str:
            nonlocal tell
            if not scheme_of(place):
                return place
            if flag in ("workdir", "lm"):
                folder, tell = stack.enter_context(store_copy.reading(place, tell, flag=f"--{flag}"))
                return str(folder)
            path = stack.enter_context(local_copies.incoming(f"--{flag}", place))
            tell = local_copies.with_address(tell, path, place)
            return str(path)

        changed: dict[str, Any] = {name: copied(name, getattr(options, name)) for name in (*READ, "lm")}
        for name in ("reference", "workdir"):
            changed[name] = tuple(copied(name, place) for place in getattr(options, name))
        yield replace(options, **changed), tell


def decode_lines(job: Job, name: str, tell: Tell, *, resume: bool, lines: range | None = None) -> None:
    """Decode lines, and write and note their results by whole windows.

    Args:
      job: the job.
      name: of the output.
      tell: receives warnings.
      resume: whether to continue the output.
      lines: numbers of the lines, if this is a part of the job; None for all.

    Raises:
      UserError: a text cannot be read, has changed, or does not suit the model; the output cannot be written, or not be
        continued.
      KeyboardInterrupt: the user interrupted decoding; only complete windows have been written.
    """
    begin, end = (0, job.lines) if lines is None else (lines.start, lines.stop)
    total, of = (None, "") if end is None else (end - begin, f" of {end - begin}")
    made_of = job.dependencies if lines is None else {**job.dependencies, **job.whole}
    done = output.finished(name, made_of) if resume else output.Finished()
    before, rows, texts = done.lines, job.read(begin, end), job.style.texts(output.lines_in(name))
    while rows.line < begin + before:
        window = rows.window(job.size)
        if not window or rows.line > begin + before:
            raise output.of_another(name, "the input has changed")
        if job.compares:
            job.note([*itertools.islice(texts, len(next(iter(window.values()))))], window)
    if before:
        output.check_same(name, done.read, rows.digests)
    if resume and (before or lines is None):
        what = "nothing left to do" if before == total else "continuing with the next line"
        tell(f"{name} already has {before}{of} lines; {what}")
    odd, count, unknown = list[int](), 0, Counter[str]()
    rest = f"{'--resume' if lines is None else 'the same command'} continues after them"
    rest = "the rest was not translated" if output.record_of(name) is None else rest
    with (
        output.opened(name, made_of, done, total) as write,
        tqdm(total=total, initial=before, unit="line", disable=not sys.stderr.isatty()) as bar,
    ):
        try:
            while window := rows.window(job.size):
                results = job.window(window, rows.line, bar.update)
                write([job.style.render(result) for result in results], rows.digests)
                if job.compares:
                    job.note([result.best.text for result in results], window)
                _warn_of_cuts(job, results, tell)
                new = [result.line + 1 for result in results if result.unknown]
                odd, count = (odd + new)[:5], count + len(new)
                unknown.update(itertools.chain(*(result.unknown for result in results)))
                if len(unknown) > KINDS:
                    unknown = Counter(dict(unknown.most_common(KINDS // 2)))
            check(total in (None, done.lines), f"{job.name} has become shorter while it was read: decode it again")
            check(
                done.lines > 0 or "reference" not in job.texts,
                f"{job.name} is empty: there is nothing to score; use lines of text",
            )
        except KeyboardInterrupt:
            tell(f"interrupted: {done.lines}{of} lines are written; {rest}")
            raise
        except UserError as error:
            if done.lines == before:
                raise
            raise UserError(f"{error} ({done.lines}{of} lines are written; {rest})") from error
    if odd:
        numbers = f"{', '.join(map(str, odd))}{' ...' if count > 5 else ''}"
        tell(
            f"{job.name}: {count} of {done.lines - before} lines have text that is not in the source vocabulary "
            f"({commonest(unknown)}) and can only be guessed: line {numbers}"
        )


def _answer_typed(job: Job, tell: Tell) -> None:
    """Answer each line of standard input before the next one is read, with a program that is compiled before."""
    tell("compiling ...")
    job.answer(0, "1")
    tell("ready: type one sentence per line; Ctrl-D ends")
    with output.opened("-", {}, output.Finished()) as write:
        for number, line in enumerate(typed_lines()):
            result = job.answer(number, line)
            write([job.style.render(result)])
            _warn_of_cuts(job, [result], tell)


def typed_lines() -> Iterator[str]:
    """Yield lines as they arrive, without a byte order mark. A terminal shows a prompt on standard error."""
    lines: Iterator[str | None] = each_line("-")
    while True:
        if sys.stdin.isatty():
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        if (line := next(lines, None)) is None:
            return
        yield line


def _warn_of_cuts(job: Job, results: Sequence[Any], tell: Tell) -> None:
    for result in results:
        if result.cut:
            tell(
                f"{job.name}, line {result.line + 1}: too long for the model's positions; left out at its end: "
                f"{counted(result.cut, 'token')}"
            )
