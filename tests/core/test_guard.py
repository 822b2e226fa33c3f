"""How programs end."""

import contextlib
import copy
import errno
import io
import itertools
import json
import logging as standard_logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from absl import logging

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import (
    INTERRUPTED,
    Expendable,
    TerminatedError,
    guard,
    held_interrupts,
    sigterm_interrupts,
    silence_libraries,
    writing_remedy,
)
from tests import tiny


def of_program(error):
    def action():
        raise error

    return action


NO_MEMORY = "out of memory: buy some"
NO_FILE = "x cannot be used: File name too long; choose another file or folder"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), NO_FILE),
        (OSError(errno.ENAMETOOLONG, "File name too long", b"x"), NO_FILE),
        (
            OSError(errno.ENOSPC, "No space left", "x"),
            "x: No space left; free disk space and run the same command again",
        ),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes"), NO_MEMORY),
        (RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 3 bytes."), NO_MEMORY),
        (UserError("two\nlines \x1b[31m"), "two\\nlines \\x1b[31m"),
        (UserError("x" * 10_000), f"{'x' * 1000} ... (8000 more characters) ... {'x' * 1000}"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_the_machine_lacks_ends_in_one_sentence(error, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        guard(of_program(error), program="p", memory="buy some")
    assert (end.value.code, capsys.readouterr().err) == (2, f"p: {sentence}\n")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free disk space or choose another file"),
        (errno.EDQUOT, "free disk space or choose another file"),
        (errno.EFBIG, "free disk space or choose another file"),
        (errno.ENOTDIR, "choose another file"),
        (None, "choose another file"),
    ],
)
def test_disk_space_is_to_be_freed_only_if_it_ran_out(number, advice):
    assert writing_remedy(OSError(number, "why"), "choose another file") == advice


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError(), OSError("a bug"), KeyError("x")], ids=repr)
def test_an_error_of_the_program_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        guard(of_program(error), program="p")


def test_sigterm_interrupts_in_the_main_thread_unless_it_is_handled_or_ignored():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with sigterm_interrupts():
        with pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
        with sigterm_interrupts(), pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_interrupts():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def elsewhere():
        with sigterm_interrupts():
            return True

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result()


def signals(done, *, inner=False):
    """Two signals in one block, or one in a block inside another."""
    with held_interrupts():
        with held_interrupts() if inner else contextlib.nullcontext():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        if not inner:
            signal.raise_signal(signal.SIGINT)
        done.append(2)


@pytest.mark.parametrize(("inner", "expected"), [(False, [1]), (True, [1, 2])])
def test_a_second_interrupt_does_not_wait_and_blocks_can_be_nested(inner, expected):
    done = []
    with pytest.raises(KeyboardInterrupt):
        signals(done, inner=inner)
    assert done == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_within_a_finaliser_ends_the_program(monkeypatch, request):
    """Python ignores what a finaliser raises."""

    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(1000))  # the handler is called here

    def action():
        silence_libraries()
        Dying()
        time.sleep(5)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr(logging.get_absl_logger(), "level", logging.get_absl_logger().level)
    monkeypatch.setattr(standard_logging.getLogger("asyncio"), "level", standard_logging.getLogger("asyncio").level)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(SystemExit) as end:
        guard(action, program="p")
    assert end.value.code == INTERRUPTED


PROGRAM = """
import os, sys
from convs2s_jax.core.guard import guard
from convs2s_jax.core.errors import UserError

def mistake():
    raise UserError("a mistake")

def action():
    {body}

guard(action, program="program")
"""
CLOSED_INPUT = "program: standard input is closed: redirect a file to it, or set --input=FILE\n"
CLOSED_OUTPUT = "program: standard output is closed: redirect it to a file, or set --output=FILE\n"
FULL = "program: No space left on device; free disk space and run the same command again\n"


class Failing(io.StringIO):
    """A stream that raises each of these errors once."""

    def __init__(self, *errors):
        super().__init__()
        self.failures = list(errors)

    def write(self, text):
        if self.failures:
            raise self.failures.pop()
        return super().write(text)


def test_a_standard_error_that_is_full_for_now_is_not_lost():
    stream = Expendable(Failing(BlockingIOError()))
    assert stream.write("a") == 1
    stream.writelines(["b", "c"])
    assert (stream.lost, stream.getvalue()) == (None, "bc")


def test_a_lost_standard_error_takes_all_output_and_keeps_the_first_error(tmp_path):
    first = OSError("first")
    stream = Expendable(Failing(OSError("second"), first))
    for text in ("a", "b"):
        stream.write(text)
    assert stream.lost is first
    assert isinstance(copy.copy(stream), Expendable)


def shell(command, **more):
    return subprocess.run(["bash", "-c", command], cwd=tiny.ROOT, capture_output=True, text=True, timeout=300, **more)


def guarded(body, redirections):
    """A small program under `guard`, started by a shell with redirections."""
    return shell(f'"$PYTHON" -c "$PROGRAM" {redirections}', env=variables() | {"PROGRAM": PROGRAM.format(body=body)})


def variables():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return buffered | {"PYTHON": sys.executable}


@pytest.mark.parametrize(
    ("body", "redirections", "status", "told"),
    [
        ("sys.stdin.read()", "<&-", 2, CLOSED_INPUT),
        ("sys.stdin.buffer.readline()", "<&-", 2, CLOSED_INPUT),
        ("next(iter(sys.stdin))", "<&-", 2, CLOSED_INPUT),
        ("print('x')", ">&-", 2, CLOSED_OUTPUT),
        ("sys.stdout.buffer.write(b'x')", ">&-", 2, CLOSED_OUTPUT),
        ("mistake()", "2>&-", 2, ""),
        ("print('x', file=sys.stderr)", "2>&-", 0, ""),
        ("pass", "<&- >&- 2>&-", 0, ""),
        ("print('x')", ">/dev/full", 2, FULL),
        ("sys.stdout.buffer.write(b'x' * 10_000)", ">/dev/full", 2, FULL),
        ("mistake()", "2>/dev/full", 2, ""),
        ("print('x' * 100_000)", "| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_a_stream_that_cannot_be_used_is_a_sentence_and_a_status(body, redirections, status, told):
    found = guarded(body, redirections)
    assert (found.returncode, found.stdout, found.stderr) == (status, "", told)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    """What a library writes to standard error must not end up in a checkpoint."""
    path = tmp_path / "checkpoint"
    body = f"file = open({str(path)!r}, 'wb'); [os.write(i, b'noise') for i in (1, 2)]; file.write(b'weights')"
    assert guarded(body, "<&- >&- 2>&-").returncode == 0
    assert path.read_bytes() == b"weights"


@pytest.mark.drill
def test_the_commands_with_every_set_of_closed_streams(tmp_path, tally):
    """Eight sets of closed streams, each with training, decoding of files and of streams, and a command that prints."""
    config = tiny.config_file(tmp_path, training__max_steps=1)
    (tmp_path / "in").write_text("Norway\n")
    lost, expected = [], None
    for closed in itertools.chain.from_iterable(itertools.combinations("012", n) for n in range(4)):
        redirections = " ".join(f"{number}>&-" for number in closed)
        workdir, out = tmp_path / f"run{''.join(closed)}", tmp_path / f"out{''.join(closed)}"
        commands = {
            f"train.py --config={config} --workdir={workdir}": 0,
            f"decode.py --workdir={workdir} --input={tmp_path}/in --output={out} --format=json": 0,
            f"decode.py --workdir={workdir} < {tmp_path}/in": 2 if {"0", "1"} & set(closed) else 0,
            "decode.py --help": 2 if "1" in closed else 0,
        }
        for command, status in commands.items():
            found = shell(f'"$PYTHON" {tiny.ROOT}/{command} {redirections}', env=variables())
            sentences = found.stderr.count("\n")
            if found.returncode != status or "Traceback" in found.stderr or (status and sentences > 1):
                lost.append((command, redirections, found))
        found = json.loads(out.read_text())
        expected = expected or found
        if found != expected:
            lost.append((workdir, found))
    tally(tries=32, losses=len(lost))
