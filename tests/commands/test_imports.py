"""What commands import: a start is mostly imports, so a library that few need is imported where it is used."""

import subprocess
import sys

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from tests import tiny

COMMAND = "from convs2s_jax.commands import convs2s; convs2s.COMMANDS['{name}'].run(['convs2s', *{flags}])"
HANDLER = """
import os, signal, sys

class Finder:
    def find_spec(name, *_):
        if name == "jax":
            print(all(signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Finder)
"""
TRANSLATING = "from convs2s_jax.translation.jobs import decoding"
RARE = {"rouge_score", "sacrebleu", "tensorboardX", "tensorflow", "tensorflow_datasets", "torch"}
SLOW = {"jax", "numpy", "flax", "orbax", *RARE}
LATER = [
    ("train", "--workdir=a"),
    ("train", "--config=a", "--workdir=b", "--process_id=1"),
    ("train", "--config=no_such_file", "--workdir=a"),
    ("prepare", "--config=no_such_file", "--workdir=a"),
    ("import", "--checkpoint=a"),
    ("export", "--workdir=a", "--output=b.pt", "--config.seed=1"),
    ("export", "--workdir=a"),
    ("scale plan", "--config=cldr_en_de"),
    ("scale check", "--config=no_such_file"),
    ("scale doctor", "--config.seed=3"),
]
"""Mistakes that the types of the flags do not show."""


def started(code, libraries):
    """Run code in a new process; return it, and which of these libraries it has imported."""
    script = (
        f"import atexit, sys; atexit.register(lambda: print('imported', *sorted({libraries!r} & set(sys.modules))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"{script}; {code}"], cwd=tiny.ROOT, capture_output=True, text=True, check=False
    )
    return ended, ended.stdout.splitlines()[-1].split()[1:]


def command(name, *flags):
    return COMMAND.format(name=name, flags=flags)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_the_refusal_of_an_unknown_flag_wait_for_no_library(name):
    ended, imported = started(f"{command(name, '--help')}; {command(name, '--wokdir=a')}", SLOW)
    assert (ended.returncode, imported) == (2, []), ended.stderr
    assert "--" in ended.stdout
    assert "wokdir" in ended.stderr


@pytest.mark.parametrize(("name", "flags"), [(name, flags) for name, *flags in LATER])
def test_flags_that_contradict_each_other_are_refused_at_once(name, flags):
    ended, imported = started(command(name, *flags), SLOW)
    assert (ended.returncode, imported) == (2, []), ended.stderr


def test_a_wrong_field_is_refused_before_training_is_imported():
    """Its class is imported, and so is JAX."""
    code = command("train", "--config=cldr_en_de", "--workdir=a", "--config.model.droput=0")
    ended, imported = started(code, {"orbax", *RARE})
    assert (ended.returncode, imported) == (2, []), ended.stderr
    assert "did you mean 'dropout'?" in ended.stderr


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("from convs2s_jax.commands.convs2s import COMMANDS; COMMANDS['config'].run(['convs2s config'])", SLOW),
        (TRANSLATING, RARE),
    ],
    ids=["a list", "translating"],
)
def test_nothing_is_imported_that_is_not_needed(code, libraries):
    ended, imported = started(code, libraries)
    assert (ended.returncode, imported) == (0, []), ended.stderr


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("train", ["--config=cldr_en_de", "--workdir=a"]),
        ("scale plan", ["--config=cldr_en_de", "--topology=cpu:1"]),
        ("scale check", ["--config=cldr_en_de"]),
        ("scale doctor", []),
        ("decode", ["--workdir=a", "--input=b"]),
        ("average", ["--workdir=a", "--checkpoint=1,2", "--output=b"]),
        ("shortlist", ["--workdir=a", "--output=b"]),
        ("serve", ["--workdir=a"]),
        ("import", ["--checkpoint=a", "--dicts=b", "--workdir=c"]),
        ("export", ["--workdir=a", "--output=b"]),
    ],
)
def test_a_signal_while_libraries_are_imported_ends_quietly(name, flags):
    code = [sys.executable, "-c", HANDLER + command(name, *flags)]
    ended = subprocess.run(code, cwd=tiny.ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == "True\n", ended.stderr
