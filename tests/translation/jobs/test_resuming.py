"""--resume continues its own work only, from any state that a kill can leave, to the bytes of an undisturbed run."""

import errno
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convs2s_jax.core import checksums, files
from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs import resuming
from tests import tiny
from tests.helpers import drills_but
from tests.translation.conftest import LINES
from tests.translation.desk import Desk

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


@pytest.fixture
def undisturbed(desk) -> bytes:
    """The bytes of `BASE`."""
    desk.decode(**BASE, output="undisturbed")
    return desk.read("undisturbed")


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
}


@pytest.mark.parametrize("complete", drills_but([False, True], kept=[False]), ids=["begun", "complete"])
@pytest.mark.parametrize("why", OTHERS)
def test_the_output_of_other_flags_is_refused(desk, why, complete):
    desk.interrupted(1, **BASE) if not complete else desk.decode(**BASE)
    before = desk.files()
    with pytest.raises(UserError, match=f"^--resume: .*out is the output of another command: {why}; use the same inp"):
        desk.decode(**{**BASE, **OTHERS[why]}, resume=True)
    assert desk.files() == before


def test_the_output_of_another_model_is_refused(desk, other, undisturbed):
    desk.interrupted(1, **BASE)
    before = desk.files()
    first, desk.workdir = desk.workdir, other
    with pytest.raises(
        UserError, match=r"out is the output of another command: --checkpoint was \[\[3\]\] and is now \[\["
    ):
        desk.decode(**BASE, resume=True)
    assert desk.files() == before
    desk.workdir = first
    desk.decode(**BASE, resume=True)
    assert desk.read() == undisturbed


@pytest.mark.parametrize("name", drills_but(["in", "prefix", "reference", "wishes", "dictionary"], kept=["in"]))
def test_the_output_of_other_texts_is_refused(desk, name):
    desk.write("wishes", ["Norwegen", *[""] * 7])
    desk.write("dictionary", ["Norway\tNORGE"])
    options = {
        "in": {},
        "prefix": {"prefix": True},
        "reference": {"reference": True, "format": "fairseq"},
        "wishes": {"constraints": desk.path("wishes")},
        "dictionary": {"replace_unk": True, "unk_dictionary": desk.path("dictionary")},
    }[name]
    desk.interrupted(1, window=3, **options)
    before = desk.files()
    changed = {"dictionary": ["Norway\tNorge"], "wishes": ["5", *[""] * 7], "reference": ["x", *[""] * 7]}
    desk.write(name, changed.get(name, ["Norwegen", *LINES[1:]] if name == "in" else ["", *[""] * 7]))
    what = {"in": "the input", "reference": "the reference", "wishes": "the file of --constraints"}
    what |= {"prefix": "the file of --prefix", "dictionary": "the file of --unk_dictionary"}
    with pytest.raises(
        UserError, match=f"^--resume: .*out is the output of another command: {what[name]} has changed; "
    ):
        desk.decode(window=3, **options, resume=True)
    assert desk.files() == before


def test_given_translations_and_a_search_are_two_things(desk):
    desk.interrupted(1, window=3, score=True, format="json")
    with pytest.raises(UserError, match="out is the output of another command: the file of --score has changed; "):
        desk.decode(window=3, format="json", resume=True)


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
        ("out", lambda data: data[:-1], "the first .* bytes of .*out have changed since they were written; start over"),
        (RECORD, lambda _: None, r"there is no .*out\.resume\.json, which records the input, model and flags"),
        (RECORD, lambda data: data[:-9], r"resume\.json is damaged \(it is not JSON\); start over without --resume"),
        (RECORD, lambda data: data.replace(b'"lines": 3', b'"lines": 4'), r"damaged \(its checksum does not match"),
        (RECORD, lambda _: b"[" * 100_000, r"resume\.json is damaged \(it is not JSON\)"),
        (
            RECORD,
            lambda _: Path.mkdir,
            r"resume\.json cannot be read \(it is a folder, not a file\); start over",
        ),
        (
            RECORD,
            lambda _: json.dumps(checksums.seal({"version": 2})).encode(),
            r"resume\.json was written by another version of this program; start over",
        ),
    ],
    ids=["edited", "cut", "no record", "record cut", "record edited", "deep", "folder", "version"],
)
def test_damage_is_seen_and_nothing_is_written(desk, name, change, message):
    desk.interrupted(1, window=3, format="json")
    path = desk.folder / name
    changed = change(path.read_bytes())
    path.unlink()
    if callable(changed):
        changed(path)
    elif changed is not None:
        path.write_bytes(changed)
    before = desk.read()
    with pytest.raises(UserError, match=f"^--resume: .*{message}"):
        desk.decode(window=3, format="json", resume=True)
    assert desk.read() == before


def test_a_complete_file_of_something_else_is_not_done(desk):
    """A file of as many lines used to count as done."""
    desk.write("out", ["x"] * 8)
    with pytest.raises(
        UserError, match=r"^--resume: there is no .*; start over without --resume, or choose another --output$"
    ):
        desk.decode(resume=True)
    assert desk.read() == b"x\n" * 8


def test_beginning_anew_replaces_the_record(desk):
    desk.decode(format="json")
    desk.interrupted(1, window=3)
    desk.decode(window=3, resume=True)
    desk.decode(output="whole")
    assert desk.read() == desk.read("whole")


def test_a_folder_without_permission_is_told_once_and_the_output_is_written(desk, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "replace_file", refuse)
    desk.decode(window=3)
    record = desk.path("out.resume.json")
    assert desk.told == [
        f"{record} cannot be written (Permission denied), so --resume will not be able to continue {desk.path('out')}"
    ]
    assert desk.read().count(b"\n") == 8


def test_a_full_disk_at_the_record_is_a_sentence(desk, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace_file", full)
    desk.write("out", ["old"])
    with pytest.raises(
        UserError, match="out cannot be written: No space left on device; free disk space or choose another file"
    ):
        desk.decode(window=3)
    assert desk.read() == b"old\n"


def test_standard_output_by_its_name_has_no_record(desk, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resuming.record_of(str(tmp_path / "link")) == tmp_path / "real.resume.json"
    assert resuming.record_of("/dev/null") is None
    assert resuming.record_of("-") is None


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
@pytest.mark.parametrize("style", STYLES)
def test_random_kills_and_interrupts_end_in_the_bytes_of_an_undisturbed_run(tmp_path, trained, style, tally):
    """60 kills at random system calls, or within a write, and 40 interrupts; 60 lines in windows of 7."""
    rng = random.Random(SEED)
    words = " ".join(LINES).split()
    desk = Desk(tmp_path, trained, [" ".join(rng.choices(words, k=rng.randint(0, 12))) for _ in range(60)])
    options = {**STYLES[style], "window": 7}
    losses = recovered(desk, rng, 60, options)
    desk.decode(**options, output="whole")
    for _ in range(40):
        desk.put((None, None))
        desk.interrupted(rng.randint(0, 8), **options)
        desk.put(rng.choice(desk.states(rng, **options, resume=True)))
        desk.decode(**options, resume=True)
        losses += desk.read() != desk.read("whole")
    tally(tries=100, losses=losses)


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


def test_lines_after_the_last_are_not_dropped_in_silence(tmp_path):
    """Those after an earlier one may be what an interrupted command had not recorded yet."""
    output, dependencies = str(tmp_path / "out"), {"--beam_size": 2}
    resuming.recorder(output, dependencies, resuming.NOTHING, print)([b"one\n", b"two\n"])
    (tmp_path / "out").write_bytes(b"one\ntwo\nthree\n")
    assert resuming.read(output, dependencies, 3) == (2, b"one\ntwo\n")
    with pytest.raises(UserError, match=rf"^--resume: {output} has more than the 2 lines that were written; "):
        resuming.read(output, dependencies, 2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()), flip=st.integers(0))
def test_any_bytes_as_a_record_are_a_sentence_or_the_record(tmp_path, content, flip):
    output, dependencies = str(tmp_path / "out"), {"--beam_size": 2, "the input": "0f"}
    (tmp_path / "out").write_bytes(b"one\ntwo\n")
    resuming.recorder(output, dependencies, resuming.NOTHING, print)([b"one\n", b"two\n"])
    assert resuming.read(output, dependencies, 3) == (2, b"one\ntwo\n")
    record = tmp_path / RECORD
    intact = bytearray(record.read_bytes())
    intact[flip // 8 % len(intact)] ^= 1 << flip % 8
    for data in (content, bytes(intact)):
        record.write_bytes(data)
        try:
            assert resuming.read(output, dependencies, 3) == (2, b"one\ntwo\n")
        except UserError as error:
            assert str(error).startswith(f"--resume: {record}")  # noqa: PT017
