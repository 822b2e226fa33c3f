"""Whole commands with the folder of compiled programs: a later one compiles nothing, and damage changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

COUNTED = """
import sys, jax
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
from convs2s_jax.commands.convs2s import COMMANDS
COMMANDS[{name!r}].run({arguments!r})
print("counted", found.count("cache_hits"), found.count("cache_misses"))
"""


def run(name: str, *arguments: object, home: Path, **others: str) -> tuple[list[str], list[int], str]:
    """Lines of standard output, programs that were found and that were compiled and kept, and standard error."""
    taken = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XDG_CACHE_HOME")
    variables = {key: value for key, value in os.environ.items() if key not in taken}
    code = COUNTED.format(name=name, arguments=[f"{name}.py", *map(str, arguments)])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tiny.ROOT,
        env={**variables, "XDG_CACHE_HOME": str(home), **others},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    *lines, counted = ended.stdout.splitlines()
    return lines, [int(number) for number in counted.split()[1:]], ended.stderr


@pytest.mark.drill
def test_a_second_command_finds_all_programs_and_survives_their_damage(tmp_path, tally):
    config = tiny.config_file(tmp_path, training__max_steps=2)
    home, workdir, text = tmp_path / "home", tmp_path / "run", tmp_path / "text"
    text.write_text("Norway and Spain\n5 kilowatts\n")
    training = ("train", f"--config={config}", f"--workdir={workdir}", "--config.mesh.data=1")
    decoding = ("decode", f"--workdir={workdir}", f"--input={text}")

    _, (_, compiled), _ = run(*training, home=home)
    assert compiled > 0
    lines, (found, compiled), told = run(*decoding, home=home)  # training has kept some of its programs
    assert (len(lines), compiled > 0, told) == (2, True, "")
    assert run(*decoding, home=home)[:2] == (lines, [found + compiled, 0])

    entries = [path for path in home.rglob("*") if path.is_file()]
    damages = [lambda data: data[:-9], lambda data: data[:0], lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:]]
    for damage in damages:
        whole = {path: path.read_bytes() for path in entries}
        for path, data in whole.items():
            path.write_bytes(damage(data))
        again, (found, _), told = run(*decoding, home=home)
        assert (again, found, told) == (lines, 0, "")
        for path, data in whole.items():
            path.write_bytes(data)

    for others in ({"JAX_ENABLE_COMPILATION_CACHE": "false"}, {"JAX_COMPILATION_CACHE_DIR": ""}):
        assert run(*decoding, home=tmp_path / "unused", **others) == (lines, [0, 0], "")
    assert not (tmp_path / "unused").exists()
    tally(tries=len(damages))


@pytest.mark.drill
@pytest.mark.parametrize(
    "options",
    [
        {"training__validate_bleu": True},
        {"data__batch__accumulate": 3, "data__batch__tokens": 400, "training__compile_ahead": 1},
        {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
    ],
    ids=["one device", "accumulated", "jit"],
)
def test_a_resumed_command_compiles_nothing(tmp_path, tally, options):
    """In processes of their own; the second start goes on where a bound has ended the first."""
    config = tiny.config_file(tmp_path, training__validate_every=2, **options)
    training = ("train", f"--config={config}", f"--workdir={tmp_path}/run")
    _, (found, compiled), _ = run(*training, "--config.training.max_steps=4", home=tmp_path / "home")
    assert (found, compiled > 10) == (0, True)
    _, (found, compiled), told = run(*training, "--config.training.max_steps=8", home=tmp_path / "home")
    assert "continuing at step 4" in told
    assert found > 10
    tally(tries=1, losses=compiled)
