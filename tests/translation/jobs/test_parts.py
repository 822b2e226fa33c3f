"""An output in parts is that of one process: claimed, continued, refused and joined, here and in an object store."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import text_files
from convs2s_jax.training.run import lock
from convs2s_jax.translation.jobs import decoding, job, on_ray, parts
from convs2s_jax.translation.jobs.output import SUFFIX
from tests import tiny
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

SEED = 20261130
FLAGS = {"format": "json", "nbest": 2, "window": 3, "prefix": True}

pytestmark = pytest.mark.usefixtures("quick")


def merged(desk, output="out"):
    parts.merge(desk.path(output), tell=desk.told.append)
    return desk.read(output)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_parts_are_decoded_once_and_join_to_the_bytes_and_scores_of_one_process(desk, count, monkeypatch):
    """Eight lines are three windows, so some of seven parts are empty."""
    desk.decode(**FLAGS, output="whole", reference=True)
    scores, opened, real = desk.told[-1], [], text_files.each_line
    monkeypatch.setattr(text_files, "each_line", lambda path, **more: opened.append(path) or real(path, **more))
    desk.decode(**FLAGS, parts=count)
    assert opened == [desk.path("in"), desk.path("prefix")]  # once, not for each part
    assert desk.told == [f"all {count} parts are complete: join them with convs2s merge --output={desk.path('out')}"]
    monkeypatch.setattr(job, "translate", lambda *_, **__: pytest.fail("decoded again"))
    desk.decode(**FLAGS, parts=count)
    assert merged(desk) == desk.read("whole")
    assert f"8 lines of {count} parts" in desk.told[-1]
    desk.decode(**FLAGS, resume=True, reference=True)
    assert desk.told == [f"{desk.path('out')} already has 8 of 8 lines; nothing left to do", scores]
    assert desk.read() == desk.read("whole")


def test_a_part_is_continued_and_one_that_is_held_is_left(desk, monkeypatch):
    desk.decode(window=1, output="whole")
    desk.interrupted(3, window=1, parts=2)
    assert desk.told == ["interrupted: 3 of 4 lines are written; the same command continues after them"]
    real, calls = job.translate, []
    monkeypatch.setattr(job, "translate", lambda *given, **more: calls.append(given) or real(*given, **more))
    first = parts.place_of(desk.path("out"), 0, 2)
    with lock.held(f"{first}.lock", "", ""):
        desk.decode(window=1, parts=2)
        assert len(calls) == 4
        start = f"1 of 2 parts are not complete, but held by other processes: --output={first} is in use: process "
        assert desk.told[0].startswith(start)
        assert desk.told[0].endswith(" is decoding it; wait until it ends, or stop it")
        with pytest.raises(UserError, match=r"part-00000-of-00002 is not complete: run the command with --parts=2 ag"):
            merged(desk)
    desk.decode(window=1, parts=2)
    assert desk.told[0] == f"{first} already has 3 of 4 lines; continuing with the next line"
    assert len(calls) == 5
    assert merged(desk) == desk.read("whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 2}, "part-00000-of-00002 is the output of another command: --batch_size was 64 and is now 2; "),
        ("text", "part-00000-of-00002 is the output of another command: the input has changed; use the same input"),
        ("line", "part-00000-of-00002 is the output of another command: the number of lines has changed; use the s"),
    ],
    ids=["flag", "text", "line"],
)
def test_parts_of_another_command_are_refused(desk, change, message):
    desk.interrupted(2, window=3, parts=2)
    if isinstance(change, str):
        desk.write("in", [*desk.lines[:-1], "other", *(["more"] if change == "line" else [])])
    before = desk.read("out.part-00000-of-00002")
    with pytest.raises(UserError, match=f"{message}.*, or delete the output, or choose another one$"):
        desk.decode(window=3, parts=2, **(change if isinstance(change, dict) else {}))
    assert desk.read("out.part-00000-of-00002") == before


def test_parts_that_do_not_go_together_are_not_joined(desk):
    with pytest.raises(UserError, match=r"out has no parts: write them with convs2s decode --parts=N --output="):
        merged(desk)
    desk.decode(window=3, parts=2)
    place, record = Path(parts.place_of(desk.path("out"), 1, 2)), parts.place_of(desk.path("out"), 1, 2) + SUFFIX
    right, noted = place.read_bytes(), Path(record).read_bytes()
    for wrong in (right[:-1], right + b"\n", right.replace(b"\n", b" ", 1)):
        place.write_bytes(wrong)
        with pytest.raises(UserError, match=r"part-00001-of-00002 has changed since it was written: delete it, run"):
            merged(desk)
        assert not (desk.folder / "out").exists()
    desk.decode(window=3, parts=2, output="other", search={"beam_size": 1})
    place.write_bytes(desk.read("other.part-00001-of-00002"))
    Path(record).write_bytes(desk.read(f"other.part-00001-of-00002{SUFFIX}"))
    with pytest.raises(UserError, match=r"is the output of another command: --beam_size was 1 and is now 2"):
        merged(desk)
    place.write_bytes(right)
    Path(record).write_bytes(noted)
    (desk.folder / "out.part-00000-of-00003").touch()
    with pytest.raises(UserError, match=r"out has parts of 2 and 3: delete those of one division"):
        merged(desk)


def test_a_cluster_needs_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"^--engine=ray needs Ray: pip install '\.\[ray\]'$"):
        on_ray.decode(job.Options(workdir=("a",), input="b", output="c", parts=2, engine="ray"), tell=print)


def test_what_is_read_once_is_not_divided(desk):
    os.mkfifo(desk.path("pipe"))
    with pytest.raises(UserError, match=r"pipe: each process of --parts reads it, but it can be read only once; use a"):
        desk.decode(parts=2, input=desk.path("pipe"))


def test_parts_in_a_store_are_written_once_and_joined_there(desk, bucket, requests, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "SILENCE", 0.5)
    desk.decode(window=3, output="whole")
    given = {"window": 3, "parts": 2, "workdir": (str(desk.workdir),)}

    def decode():
        options = job.Options(**given, input=desk.path("in"), output="gs://bucket/folder/out")
        desk.told = []
        parts.decode(options, tell=desk.told.append)

    decode()
    written = [address for what, address in requests if what == "write"]
    names = [parts.place_of("gs://bucket/folder/out", i, 2) for i in range(2)]
    assert written == [name + suffix for name in names for suffix in ("", SUFFIX)]
    stores.delete(names[1] + SUFFIX)
    stores.write(f"{names[1]}.lock", lock.this_process().to_bytes())  # it lives
    requests.clear()
    decode()
    assert f"but held by other processes: --output={names[1]} is in use" in desk.told[-1]
    stores.delete(f"{names[1]}.lock")
    decode()
    assert [address for what, address in requests if what == "write"] == [names[1], names[1] + SUFFIX]
    parts.merge("gs://bucket/folder/out", tell=desk.told.append)
    assert stores.read("gs://bucket/folder/out") == desk.read("whole")
    assert json.loads(stores.read(f"gs://bucket/folder/out{SUFFIX}"))["lines"] == 8


@pytest.mark.drill
def test_workers_that_are_killed_cost_a_window_at_most(tmp_path, trained, tally):
    """Three workers at a time, ten of them killed at random moments; the others finish, and the bytes are the same."""
    rng, count = random.Random(SEED), 6
    (tmp_path / "in").write_text("".join(f"{i} kilowatts\n" for i in range(960)))
    flags = [f"--workdir={trained}", f"--input={tmp_path}/in", "--format=json", "--window=4"]
    command = [sys.executable, "decode.py", *flags]
    subprocess.run([*command, f"--output={tmp_path}/whole"], cwd=tiny.ROOT, check=True, capture_output=True)
    command += [f"--output={tmp_path}/out", f"--parts={count}"]
    start = lambda: subprocess.Popen(command, cwd=tiny.ROOT, stderr=subprocess.PIPE)  # noqa: E731
    places = [parts.place_of(f"{tmp_path}/out", i, count) for i in range(count)]

    def lines():
        return [json.loads(Path(p + SUFFIX).read_text())["lines"] if Path(p + SUFFIX).exists() else 0 for p in places]

    workers, kills, losses = [start() for _ in range(3)], 0, 0
    while kills < 10 and sum(lines()) < 900:
        before = sum(lines())
        while sum(lines()) == before:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        victim = workers.pop(rng.randrange(3))
        noted = lines()
        victim.kill()
        kills += victim.wait() == -signal.SIGKILL
        losses += any(now < then for then, now in zip(noted, lines(), strict=True))
        victim.stderr.close()
        workers.append(start())
    told = [worker.communicate(timeout=300)[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 3, told
    subprocess.run(
        [sys.executable, "-m", "convs2s_jax", "merge", f"--output={tmp_path}/out"], cwd=tiny.ROOT, check=True
    )
    losses += (tmp_path / "out").read_bytes() != (tmp_path / "whole").read_bytes()
    tally(tries=kills, losses=losses)


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_workers_of_a_cluster_decode_the_bytes_of_one_process(tmp_path, trained):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    (tmp_path / "in").write_text("".join(f"{i} kilowatts\n" for i in range(40)))
    given = {"workdir": (str(trained),), "input": f"{tmp_path}/in", "window": 4}
    decoding.decode(job.Options(**given, output=f"{tmp_path}/whole"), tell=print)
    divided = job.Options(**given, output=f"{tmp_path}/out", parts=3, engine="ray")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        on_ray.decode(divided, tell=print)
        parts.merge(divided.output, tell=print)
        assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
        with pytest.raises(UserError, match="the output of another command: --batch_size was 64 and is now 2"):
            on_ray.decode(dataclasses.replace(divided, batch_size=2), tell=print)
    finally:
        ray.shutdown()
