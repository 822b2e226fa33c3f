"""--resume continues its own work only, from any state that a kill can leave, to the bytes of an undisturbed run."""

import random
import signal
import subprocess
import sys
import time

import pytest

from convs2s_jax.core.errors import UserError
from tests import tiny

pytestmark = pytest.mark.usefixtures("quick")

SEED = 20261122
RECORD = "out.resume.json"
STYLES = {"text": {}, "json": {"format": "json", "nbest": 2}, "fairseq": {"format": "fairseq", "nbest": 2}}
BASE = {
    "format": "json",
    "nbest": 2,
    "window": 3,
    "prefix": True,
    "search": {"sampling": True, "beam_size": 2},
    "seed": 1,
}


OTHERS = {
    "--window was 3 and is now 2": {"window": 2},
    "--nbest was 2 and is now 1": {"nbest": 1},
    "--format was json and is now fairseq": {"format": "fairseq"},
    "--batch_size was 64 and is now 2": {"batch_size": 2},
    "--batch_tokens was 16384 and is now 32": {"batch_tokens": 32},
    "--seed was 1 and is now 2": {"seed": 2},
    "--replace_unk was False and is now True": {"replace_unk": True},
    "--beam_size was 2 and is now 3": {"search": {**BASE["search"], "beam_size": 3}},
    "--temperature was 1.0 and is now 0.5": {"search": {**BASE["search"], "temperature": 0.5}},
    "--max_length_b was 10 and is now 3": {"search": {**BASE["search"], "max_length_b": 3}},
    "the file of --prefix has changed": {"prefix": ""},
    "--sampling was True and is now False": {"search": {}, "seed": None},
    "--int8 was False and is now True": {"int8": True},
}


@pytest.mark.parametrize("why", OTHERS)
def test_the_output_of_other_flags_is_refused(desk, why):
    desk.interrupted(1, **BASE)
    before = desk.files()
    with pytest.raises(UserError, match=f"^.*out is the output of another command: {why}; use the same inp"):
        desk.decode(**{**BASE, **OTHERS[why]}, resume=True)
    assert desk.files() == before


def test_what_does_not_decide_the_bytes_may_change(desk):
    desk.decode(window=3, output="whole")
    desk.interrupted(1, window=3)
    desk.decode(window=3, resume=True, reference=True, show=1, metrics=("exact",))
    assert desk.read() == desk.read("whole")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "out",
            lambda data: data.replace(b"Norway", b"Norwax", 1),
            "the first .* bytes of .*out have changed since they w",
        ),
        ("out", lambda data: data[:-1], "the first .* bytes of .*out have changed since they were written; delete"),
        (RECORD, lambda _: None, r"there is no .*out\.resume\.json, which records the input, model and flags"),
        (
            RECORD,
            lambda data: data[:-9],
            r"resume\.json is damaged \(it is not JSON\); delete the output, or choose another one$",
        ),
        (RECORD, lambda data: data.replace(b'"lines": 3', b'"lines": 4'), r"damaged \(its checksum does not match"),
        (RECORD, lambda _: b"[" * 100_000, r"resume\.json is damaged \(it is not JSON\)"),
    ],
    ids=["edited", "cut", "no record", "record cut", "record edited", "deep"],
)
def test_damage_is_seen_and_nothing_is_written(desk, name, change, message):
    desk.interrupted(1, window=3, format="json")
    path = desk.folder / name
    changed = change(path.read_bytes())
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    before = desk.read()
    with pytest.raises(UserError, match=f"^.*{message}"):
        desk.decode(window=3, format="json", resume=True)
    assert desk.read() == before


def test_a_complete_output_to_which_something_was_added_is_refused(desk):
    desk.decode(window=3)
    added = desk.read() + b"more\n"
    (desk.folder / "out").write_bytes(added)
    with pytest.raises(UserError, match=r"out has more than the 8 lines that were written; delete the output, or cho"):
        desk.decode(window=3, resume=True)
    assert desk.read() == added


def recovered(desk, rng, tries, options):
    """How many of `tries` kills, at random system calls, end in other bytes than an undisturbed run."""
    states = desk.states(rng, **options, output="out")
    whole, losses = desk.read(), 0
    for _ in range(tries):
        desk.put(rng.choice(states))
        left = desk.read() if (desk.folder / "out").exists() else b""
        if left and desk.files()[1] is None:
            losses += 1
            continue
        desk.decode(**options, resume=True)
        losses += desk.read() != whole
    return losses


@pytest.mark.parametrize("style", STYLES)
def test_a_kill_at_any_moment_costs_nothing(desk, style):
    assert recovered(desk, random.Random(SEED), 8, {**STYLES[style], "window": 3}) == 0


@pytest.mark.drill
def test_processes_that_are_killed_lose_nothing(tmp_path, trained, tally):
    """12 real SIGKILLs at random moments of one output, which is continued each time."""
    rng = random.Random(SEED)
    (tmp_path / "in").write_text("".join(f"{i} kilowatts\n" for i in range(400)))
    flags = [f"--workdir={trained}", f"--input={tmp_path}/in", "--format=json", "--window=4"]
    command = [sys.executable, "decode.py", *flags]
    subprocess.run([*command, f"--output={tmp_path}/whole"], cwd=tiny.ROOT, check=True, capture_output=True)
    out, kills = tmp_path / "out", 0
    while True:
        process = subprocess.Popen([*command, f"--output={out}", "--resume"], cwd=tiny.ROOT, stderr=subprocess.PIPE)
        before = out.stat().st_size if out.exists() else 0
        while kills < 12 and process.poll() is None and (out.stat().st_size if out.exists() else 0) == before:
            time.sleep(0.005)
        if kills < 12:
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
        told = process.communicate(timeout=300)[1].decode()
        if process.returncode != -signal.SIGKILL:
            break
        kills += 1
    assert process.returncode == 0, told
    tally(tries=kills, losses=int(out.read_bytes() != (tmp_path / "whole").read_bytes()))
