"""How programs end."""

import contextlib
import errno
import io
import logging as standard_logging
import os
import signal
import subprocess
import sys
import time

import pytest
from absl import logging

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import (
    INTERRUPTED,
    TerminatedError,
    guard,
    held_interrupts,
    sigterm_interrupts,
    silence_libraries,
)
from tests import tiny


def test_what_standard_output_cannot_encode_is_escaped(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    guard(lambda: sys.stdout.write("gr\xfcn \u732b \udcff"), program="p")
    assert sys.stdout.buffer.getvalue() == b"gr\xfcn \\u732b \\udcff"


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
        (
            OSError(errno.ENOSPC, "No space left", "x"),
            "x: No space left; free disk space and run the same command again",
        ),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes"), NO_MEMORY),
        (UserError("two\nlines \x1b[31m"), "two\\nlines \\x1b[31m"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_the_machine_lacks_ends_in_one_sentence(error, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        guard(of_program(error), program="p", memory="buy some")
    assert (end.value.code, capsys.readouterr().err) == (2, f"p: {sentence}\n")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError(), OSError("a bug"), KeyError("x")], ids=repr)
def test_an_error_of_the_program_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        guard(of_program(error), program="p")


def test_sigterm_interrupts_and_blocks_can_be_nested():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with sigterm_interrupts():
        with pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
        with sigterm_interrupts(), pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
FULL = "program: No space left on device; free disk space and run the same command again\n"


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
        ("assert sys.stdin.buffer.read() == b''; print('x')", "<&- >&-", 0, ""),
        ("mistake()", "2>&-", 2, ""),
        ("print('x', file=sys.stderr)", "2>&-", 0, ""),
        ("print('x')", ">/dev/full", 2, FULL),
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
