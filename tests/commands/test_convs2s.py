"""The command that starts all others."""

import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from convs2s_jax.commands import convs2s
from convs2s_jax.core.command_line import Command

IMPORTING = """
import time
from types import SimpleNamespace
from convs2s_jax.commands import convs2s

def load(_):
    print("begun", flush=True)
    time.sleep(60)

convs2s.importlib = SimpleNamespace(import_module=load)
convs2s.{entry}()
"""


@pytest.mark.parametrize("entry", ["console", "train", "decode"])
def test_an_interrupt_while_a_command_is_imported_ends_quietly(entry):
    code = [sys.executable, "-c", IMPORTING.format(entry=entry), "train", "--config=a"]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT


def test_python_handles_interrupts_again_when_a_command_starts(monkeypatch):
    found = []

    def load(_):
        found.append(signal.getsignal(signal.SIGINT))
        return SimpleNamespace(COMMAND=Command("", (), lambda *_: found.append(signal.getsignal(signal.SIGINT))))

    monkeypatch.setattr(convs2s, "importlib", SimpleNamespace(import_module=load))
    convs2s.COMMANDS["train"].run(["train.py"])
    assert found == [signal.SIG_DFL, signal.default_int_handler]


def test_versions_are_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["convs2s", "--version"])
    convs2s.console()
    assert re.fullmatch(r"convs2s_jax \d+\.\d+\.\d+\S*, jax \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)
