"""train.py and decode.py as started by a user: one sentence and status 2 for a mistake, one line out for one in."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import command_line
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports.measures import ACTIVITIES
from tests import tiny
from tests.processes import called


def training(*arguments):
    """train.py within this process."""
    return called(COMMANDS["train"].run, "train.py", *arguments)


def decoding(*arguments, text=""):
    """decode.py within this process."""
    return called(COMMANDS["decode"].run, "decode.py", *arguments, text=text)


def run(program, *arguments, text="", largest_file=None):
    command = [sys.executable, program, *map(str, arguments)]
    if largest_file is not None:  # writing beyond fails as it does on a full disk
        command = ["prlimit", f"--fsize={largest_file}", *command]
        command[2:2] = ["env", "PYTHONDONTWRITEBYTECODE=1"]  # bytecode of new sources would be truncated
    return subprocess.run(command, cwd=tiny.ROOT, input=text, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train(tiny.config(training__max_steps=3, training__save_every=1), workdir)
    return workdir


def refused(result):
    """The one sentence of a mistake."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "train.py: --config is missing, as in --config=cldr_en_de --workdir=runs/a"),
        (["--workdir={tmp}/w"], "/w has no run to continue; add a configuration, as in --config=cldr_en_de"),
        (["--workdri=x"], "--workdri is not a flag of this command; did you mean 'workdir'?"),
        (["--config=configs/multi30k_de_en.py", "--workdir={tmp}/w", "--config.data.dir={tmp}"], "train.de"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_training_refuses_with_one_sentence(tmp_path, arguments, sentence):
    result = training(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert sentence in refused(result)


def test_a_run_continues_with_its_stored_configuration(tmp_path, trained):
    shutil.copytree(trained, tmp_path / "run")
    result = training(f"--workdir={tmp_path}/run/", "--config.training.max_steps=4")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "checkpoints" / "4").is_dir()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit (util-linux) bounds the size of files here")
def test_a_full_disk_is_told_in_a_sentence(tmp_path):
    config = tiny.config_file(tmp_path)
    result = run("train.py", f"--config={config}", f"--workdir={tmp_path}/run", largest_file=4000)
    assert "File too large; free disk space" in refused(result)


def test_decoding_refuses_with_one_sentence(tmp_path, trained):
    shutil.copytree(trained, tmp_path / "empty", ignore=shutil.ignore_patterns("checkpoints"))
    for flags, sentence in (
        ([], "--workdir is missing"),
        ([f"--workdir={tmp_path}/no"], "there is no such folder"),
        ([f"--workdir={tmp_path}"], "contains no config.json"),
        ([f"--workdir={tmp_path}/empty"], "there is no checkpoint here"),
        ([f"--workdir={trained}", "--checkpoint=77"], "no checkpoint of step 77; it has"),
        ([f"--workdir={trained}", "--checkpoint=1,b"], "--checkpoint contains 'b': expected a step, or last:N"),
    ):
        assert sentence in refused(decoding(*flags, text="1\n"))


def test_one_line_in_gives_one_line_out(tmp_path, trained):
    lines = ["5 kilowatts", "", "1 2 " * 60, "Norway", "   ", "\u2028 odd", "Norway"]
    result = run("decode.py", f"--workdir={trained}", text="".join(line + "\n" for line in lines))
    assert result.returncode == 0, result.stderr
    out = result.stdout.split("\n")
    assert len(out) == len(lines) + 1
    assert out[1] == ""
    assert out[4] == ""
    assert out[3] == out[6]
    assert "standard input, line 3: too long for the model's positions; left out at its end: " in result.stderr
    assert "line 4" not in result.stderr


@pytest.mark.drill
def test_a_training_whose_messages_have_no_reader_runs_to_its_end(tmp_path):
    """As in `train.py ... 2>&1 | head`. It ended without saving."""
    config = tiny.config_file(tmp_path, training__max_steps=3)
    reader, writer = os.pipe()
    command = [sys.executable, "train.py", f"--config={config}", f"--workdir={tmp_path}/run"]
    process = subprocess.Popen(command, cwd=tiny.ROOT, stderr=writer)
    os.close(writer)
    os.close(reader)
    assert process.wait(timeout=240) == 0
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()


@pytest.mark.drill
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit (util-linux) bounds the size of files here")
def test_a_full_disk_leaves_whole_lines(trained, tmp_path):
    text = "".join(f"{i} kilowatts\n" for i in range(512))
    flags = [f"--workdir={trained}", f"--output={tmp_path}/out", "--window=16"]
    sentence = refused(run("decode.py", *flags, text=text, largest_file=3000))  # the record beside it takes 1,300
    assert f"--output={tmp_path}/out cannot be written: File too large; free disk space" in sentence
    found = (tmp_path / "out").read_text()
    assert found.endswith("\n")
    assert 0 < len(found) <= 3000
    assert decoding(f"--workdir={trained}", text=text).stdout.startswith(found)


OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A program on a terminal of its own, whose keys send signals."""

    def __init__(self, *arguments):
        self.file, other = pty.openpty()
        command = [sys.executable, "-c", OWN_TERMINAL, sys.executable, *arguments]
        files = {"stdin": other, "stdout": other, "stderr": other}
        self.process = subprocess.Popen(command, cwd=tiny.ROOT, start_new_session=True, **files)
        os.close(other)
        self.seen = ""

    def type(self, text):
        os.write(self.file, text.encode())

    def wait_for(self, pattern, seconds=120):
        """What came on the screen up to the pattern."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self.file], [], [], 0.1)[0]:
                self.seen += os.read(self.file, 4096).decode()
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def end(self, key, seconds=120):
        """Exit status after a key; what came on the screen last is in `seen`.

        A key between the prompt and the moment when readline sets the terminal's mode is lost: it is pressed again,
        but not before a program on a busy machine has ended, whose status the second key would change.
        """
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError):  # raised when the other side is closed
            while self.process.poll() is None:
                assert time.monotonic() < deadline, self.seen
                self.type(key)
                while select.select([self.file], [], [], 10)[0]:
                    self.seen += os.read(self.file, 4096).decode()
        os.close(self.file)
        return self.process.wait(timeout=60)


@pytest.mark.drill
@pytest.mark.parametrize(("key", "status"), [("\x04", 0), ("\x03", 130)])
def test_on_a_terminal_answers_follow_a_prompt(trained, key, status):
    terminal = Terminal("decode.py", f"--workdir={trained}", "--interactive", "--format=json")
    seen = terminal.wait_for("> ")
    assert re.search(r"compiling \.\.\..*ready: type one sentence per line; Ctrl-D ends", seen, re.DOTALL)
    for number, sentence in enumerate(("Norway", "5 km")):
        terminal.type(f"{sentence}\n")
        seen = terminal.wait_for("> ")
        assert f'{{"line": {number}, "source": "{sentence}"' in seen
    assert terminal.end(key) == status
    assert "Traceback" not in terminal.seen


def test_metrics_have_the_promised_fields(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    common = {"step", "epoch", "split", "loss", "perplexity"}
    trains = [line for line in lines if line["split"] == "train"]
    valids = [line for line in lines if line["split"] == "valid"]
    others = {"learning_rate", "grad_norm", "compilations"}
    others |= {f"{activity}_share" for activity in ACTIVITIES}
    speeds = {"tokens_per_second", "step_seconds"}
    tests = [line for line in lines if line["split"] == "test"]
    assert trains
    assert valids
    assert len(tests) == 1
    assert tests[0]["step"] == min(valids, key=lambda line: line["loss"])["step"]
    assert all(set(line) - speeds == common | others | {"checksum"} for line in trains)
    assert all(speeds <= set(line) for line in trains[1:])  # the first one may be of updates that compile
    assert all(common <= set(line) for line in valids + tests)


@pytest.mark.parametrize("name", ["train", "decode", "serve", "report", "shortlist"])
def test_where_memory_is_missing_the_sentence_names_flags_of_the_command(name):
    def fail(*_):
        raise MemoryError

    command = COMMANDS[name].command._replace(main=fail)
    result = called(lambda given: command_line.run(command, arguments=["p", *given]))
    assert refused(result) == f"p: out of memory: {command.memory}"
    named = {flag for flag in re.findall(r"--([\w.]+)", command.memory) if not flag.startswith("config.")}
    assert named <= {field.name for group in command.groups for field in group.fields}


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "convs2s_jax", "nonsense"], capture_output=True, text=True, timeout=60, check=False
    )
    assert refused(done).startswith("convs2s: unknown command 'nonsense'; available: ")
