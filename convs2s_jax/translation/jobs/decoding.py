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
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.guard import held_interrupts
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data import corpora
from convs2s_jax.data.lines import temporary
from convs2s_jax.data.text_files import without_end
from convs2s_jax.data.unknown import commonest
from convs2s_jax.metrics import scoring
from convs2s_jax.training.run import outputs, run_folder, store_copy
from convs2s_jax.translation.jobs import output
from convs2s_jax.translation.jobs.job import JOBS, Job
from convs2s_jax.translation.jobs.options import READ, Options
from convs2s_jax.translation.trained import moved

PROMPT = "> "


def decode(options: Options, *, tell: Tell) -> None:
    """Translate, score or label every line of a file, or of what is typed, depending on the model and the options.

    Args:
      options: see `Options`.
      tell: receives warnings and scores.

    Raises:
      UserError: the input is invalid. Nothing has been written, unless the message says so.
      KeyboardInterrupt: the user interrupted decoding; only complete lines have been written.
    """
    scoring.check_metrics(options.metrics or scoring.DEFAULT, options.bleu_tokenize or "13a")
    outputs.check_outside_runs(options.output, "--output")
    with localised(options, tell) as (local, say):
        output.check_writable(local.output)
        configs = [run_folder.load_config(Path(workdir), given_as=flag) for flag, workdir in local.runs]
        for (flag, workdir), cfg in zip(local.runs, configs, strict=True):
            corpus = corpora.files_of(moved(cfg.data, local.corpus))
            output.check_not_overwriting(local.output, corpus, f"a file of the corpus of {flag}={workdir}")
        job = JOBS[configs[0].model.kind](local, say)
        if local.interactive:
            _answer_typed(job, say)
        else:
            _decode_file(job, local, say)


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


def _decode_file(job: Job, options: Options, tell: Tell) -> None:
    total = len(job.lines)
    finished = output.finished_part(options.output, job.dependencies, total) if options.resume else b""
    texts, odd, unknown = temporary(), list[int](), Counter[str]()
    begin = done = texts.extend(job.style.texts(finished))
    if options.resume:
        what = "nothing left to do" if begin == total else "continuing with the next line"
        tell(f"{options.output} already has {begin} of {total} lines; {what}")
    with (
        output.opened(options.output, job.dependencies, finished, begin) as write,
        tqdm(total=total, initial=begin, unit="line", disable=not sys.stderr.isatty()) as bar,
    ):
        try:
            while done < total:
                results = job.window(done, bar.update)
                with held_interrupts():
                    write([job.style.render(result) for result in results])
                    done += texts.extend(result.best.text for result in results)
                _warn_of_cuts(job, results, tell)
                odd += [result.line + 1 for result in results if result.unknown]
                unknown.update(itertools.chain(*(result.unknown for result in results)))
        except KeyboardInterrupt:
            resumed = output.record_of(options.output) is not None
            rest = "--resume continues after them" if resumed else "the rest was not translated"
            tell(f"interrupted: {done} of {total} lines are written; {rest}")
            raise
    if odd:
        numbers = f"{', '.join(map(str, odd[:5]))}{' ...' if len(odd) > 5 else ''}"
        tell(
            f"{job.name}: {len(odd)} of {total - begin} lines have text that is not in the source vocabulary "
            f"({commonest(unknown)}) and can only be guessed: line {numbers}"
        )
    job.report(texts.lines())


def _answer_typed(job: Job, tell: Tell) -> None:
    """Answer each line of standard input before the next one is read, with a program that is compiled before."""
    tell("compiling ...")
    job.answer(0, "1")
    tell("ready: type one sentence per line; Ctrl-D ends")
    with output.opened("-", {}) as write:
        for number, line in enumerate(typed_lines()):
            result = job.answer(number, line)
            write([job.style.render(result)])
            _warn_of_cuts(job, [result], tell)


def typed_lines() -> Iterator[str]:
    """Yield lines as they arrive, without a byte order mark. A terminal shows a prompt on standard error."""
    terminal = sys.stdin.isatty()
    for number in itertools.count(1):
        if terminal:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        data = sys.stdin.buffer.readline()
        if not data:
            return
        try:
            line = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: byte 0x{data[error.start]:02x} is not UTF-8; convert it, for example "
                "with iconv -t utf-8"
            ) from error
        yield without_end(line.removeprefix("\ufeff") if number == 1 else line)


def _warn_of_cuts(job: Job, results: Sequence[Any], tell: Tell) -> None:
    for result in results:
        if result.cut:
            tell(
                f"{job.name}, line {result.line + 1}: too long for the model's positions; left out at its end: "
                f"{counted(result.cut, 'token')}"
            )
