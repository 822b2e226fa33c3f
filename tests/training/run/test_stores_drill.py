"""Runs whose workdir, text, vocabularies and outputs lie in object stores, with the real protocols on this machine."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.places import joined
from convs2s_jax.data import corpora
from convs2s_jax.training.run import store_copy
from tests import emulators, tiny
from tests.processes import Process, free_port

pytestmark = pytest.mark.drill
KILLS = 10


@pytest.fixture(params=["gs", "s3"], scope="module")
def store(request):
    with emulators.running(request.param) as found:
        yield found


@pytest.fixture
def variables(store, monkeypatch, tmp_path):
    """The environment of programs that use the store; that of this process too."""
    found = {**store.variables, "XDG_CACHE_HOME": str(tmp_path / "caches")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_objects_are_read_in_ranges(store, variables, monkeypatch):
    monkeypatch.setattr(stores, "RANGE", 4)
    for size in (1, 3, 4, 5, 8, 9):
        stores.write(store.address("numbers"), bytes(range(size)))
        assert stores.Reader(store.address("numbers")).read() == bytes(range(size))
    with pytest.raises(FileNotFoundError):
        stores.Reader(store.address("nothing")).read()


def run(program, *arguments):
    command = [sys.executable, program, *map(str, arguments)]
    return subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, timeout=300, check=False)


def trained(config, workdir, *more):
    done = run("train.py", f"--config={config}", f"--workdir={workdir}", *more)
    assert done.returncode == 0, done.stderr
    return done


def arrays(address, step):
    with store_copy.opened(address) as folder:
        return {name: array.tobytes() for name, array in tiny.arrays(folder, step).items()}


def local_arrays(workdir, step):
    return {name: array.tobytes() for name, array in tiny.arrays(workdir, step).items()}


def upload(folder, address):
    for path in folder.iterdir():
        stores.write(joined(address, path.name), path.read_bytes())


def test_killed_runs_in_a_store_end_with_the_same_bits(store, variables, tmp_path, tally):
    """Each run is killed a moment after a random line of its log: while it starts, trains, saves or writes back.

    The last one is killed once a checkpoint is in the store, as a loaded machine may have written none before.
    """

    def stored():
        names = store_copy.steps_of(stores.names(workdir)).items()
        return [int(step) for step, found in names if store_copy.MARK in found]

    config = tiny.config_file(tmp_path, training__save_every=5, training__validate_every=40)
    workdir, draw = store.address("killed"), random.Random(7)
    for start in range(KILLS):
        # every second start is on what looks like another machine: nothing of the one before is there
        own = {**variables, "XDG_CACHE_HOME": str(tmp_path / f"caches{start // 2}")}
        arguments = [f"--config={config}", f"--workdir={workdir}", "--config.training.max_steps=100000"]
        process = Process(arguments, 8, tmp_path / f"{start}.txt", own)
        lines = draw.randrange(20)
        while process.told.count("\n") < lines or (start + 1 == KILLS and not stored()):
            assert process.popen.poll() is None, process.told
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))
        process.popen.send_signal(signal.SIGKILL)
        process.wait()
    steps = stored()
    end = max(steps) + 10
    last = trained(config, workdir, f"--config.training.max_steps={end}")
    assert f"continuing at step {max(steps)}" in last.stderr
    assert not [name for name in stores.names(workdir) if name.startswith("lock")]
    trained(config, tmp_path / "local", f"--config.training.max_steps={end}")
    same = arrays(workdir, end) == local_arrays(tmp_path / "local", end)
    tally(tries=KILLS, losses=0 if same else KILLS)


def test_everything_in_a_store_gives_what_a_local_run_gives(store, variables, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split, sides in {name: corpora.read(tiny.config().data, name) for name in corpora.SPLITS}.items():
        (text / f"{split}.en").write_text("\n".join(sides.src) + "\n")
        (text / f"{split}.de").write_text("\n".join(sides.tgt) + "\n")
    upload(text, store.address("text"))
    config = tiny.config_file(tmp_path, data__corpus="files", data__dir=str(text))
    local, remote = tmp_path / "local", store.address("remote")
    trained(config, local)
    upload(local / "vocab", store.address("vocab"))
    trained(config, remote, f"--config.data.dir={store.address('text')}", "--config.training.max_steps=4")
    trained(config, remote, f"--config.data.dir={store.address('text')}")  # continues
    assert arrays(remote, 8) == local_arrays(local, 8)
    given = store.address("given")
    trained(config, given, f"--config.data.dir={text}", f"--config.data.vocabulary.dir={store.address('vocab')}")
    assert arrays(given, 8) == local_arrays(local, 8)

    flags = ["--format=json", "--window=2"]
    here = run("decode.py", f"--workdir={local}", f"--input={text}/test.en", f"--output={tmp_path}/out", *flags)
    assert here.returncode == 0, here.stderr
    there = [f"--workdir={remote}", f"--input={store.address('text/test.en')}", f"--output={tmp_path}/a.json", *flags]
    found = run("decode.py", *there, f"--reference={store.address('text/test.de')}")
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "out").read_bytes()
    assert [line for line in found.stderr.splitlines() if line.startswith("BLEU")]


def test_a_second_trainer_is_refused(store, variables, tmp_path):
    config = tiny.config_file(tmp_path, training__max_steps=100_000)
    workdir = store.address("twice")
    first = Process([f"--config={config}", f"--workdir={workdir}"], 8, tmp_path / "first.txt", variables)
    try:
        while not [name for name in stores.names(workdir) if name == "config.json"]:
            assert first.popen.poll() is None, first.told
        second = run("train.py", f"--config={config}", f"--workdir={workdir}")
    finally:
        first.popen.send_signal(signal.SIGTERM)
        assert first.wait() == 0, first.told
    assert second.returncode == 2
    last = second.stderr.splitlines()[-1]
    assert last.startswith(f"train.py: --workdir={workdir} is in use: process {first.popen.pid} on ")
    assert not [name for name in stores.names(workdir) if name.startswith("lock")]


def together(config, workdir, tmp_path, each, *more):
    """Processes of one training to their end, as many as environments: the status of each, and what it told."""
    common = [f"--config={config}", f"--workdir={workdir}", f"--config.mesh.data={2 * len(each)}", *more]
    common += [f"--num_processes={len(each)}"]
    common += [f"--coordinator_address=127.0.0.1:{free_port()}"]
    processes = [
        Process([*common, f"--process_id={i}"], 2, tmp_path / f"process{i}.txt", variables)
        for i, variables in enumerate(each)
    ]
    try:
        return [(process.wait(), process.told) for process in processes]
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait()


@pytest.mark.parametrize("machines", [(0, 0), (0, 0, 1, 1)], ids=["one machine", "two machines"])
def test_processes_save_and_continue(store, variables, tmp_path, machines):
    """With a folder of caches of their own, they are as on several machines without a shared file system."""
    each = [{**variables, "XDG_CACHE_HOME": str(tmp_path / f"caches{i}")} for i in machines]
    config = tiny.config_file(tmp_path, training__save_every=2)
    workdir = store.address(f"on{'-'.join(map(str, machines))}")
    first = together(config, workdir, tmp_path, each, "--config.training.max_steps=4")
    assert [status for status, _ in first] == [0] * len(each), first
    again = together(config, workdir, tmp_path, each)
    assert [status for status, _ in again] == [0] * len(each), again
    assert "continuing at step 4" in again[0][1]
    there = together(config, tmp_path / "local", tmp_path, each)
    assert [status for status, _ in there] == [0] * len(each), there
    assert arrays(workdir, 8) == local_arrays(tmp_path / "local", 8)
    records = stores.read(f"{workdir}/metrics.jsonl").decode().splitlines()
    assert [json.loads(line)["split"] for line in records].count("test") == 2
    assert b"stopped at step 8" in stores.read(f"{workdir}/train.log")


def test_credentials_that_are_refused_are_one_sentence(tmp_path, monkeypatch):
    with emulators.running("s3", INITIAL_NO_AUTH_ACTION_COUNT="2") as store:
        for name, value in store.variables.items():
            monkeypatch.setenv(name, value)
        found = run("train.py", f"--config={tiny.config_file(tmp_path)}", f"--workdir={store.address('run')}")
    assert found.returncode == 2
    assert "cannot be used: PERMISSION_DENIED: " in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
