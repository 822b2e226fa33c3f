"""Standard streams that are closed, full or without a reader: a sentence, a status, and no file in their place."""

import copy
import io
import itertools
import json
import os
import subprocess
import sys

import pytest

from convs2s_jax.core import streams
from tests import tiny

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
    stream = streams.Expendable(Failing(BlockingIOError()))
    assert stream.write("a") == 1
    stream.writelines(["b", "c"])
    assert (stream.lost, stream.getvalue()) == (None, "bc")


def test_a_lost_standard_error_takes_all_output_and_keeps_the_first_error(tmp_path):
    first = OSError("first")
    stream = streams.Expendable(Failing(OSError("second"), first))
    for text in ("a", "b"):
        stream.write(text)
    assert stream.lost is first
    assert isinstance(copy.copy(stream), streams.Expendable)


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
