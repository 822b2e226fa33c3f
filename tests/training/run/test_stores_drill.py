"""Runs whose workdir, text, vocabularies and outputs lie in object stores, with the real protocols on this machine."""

import contextlib
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.places import joined
from convs2s_jax.data import corpora
from convs2s_jax.training.run import store_copy
from tests import emulators, tiny
from tests.commands.test_kept_programs import run as counted
from tests.interop.fairseq import examples
from tests.processes import Process, free_port

pytestmark = pytest.mark.drill
KILLS = 10
CONVS2S = "from convs2s_jax.commands.convs2s import console; console()"


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


def test_another_machine_compiles_nothing(store, variables, tmp_path):
    """The second start has a program of its own, which reads the checkpoint."""
    config, workdir = tiny.config_file(tmp_path, training__max_steps=300), store.address("compiled")
    counts = []
    for machine, steps in (("a", 300), ("b", 600), ("c", 604)):
        arguments = [f"--config={config}", f"--workdir={workdir}", f"--config.training.max_steps={steps}"]
        _, found, _ = counted("train", *arguments, home=tmp_path / machine, **store.variables)
        counts.append(found)
    (_, compiled), (found, more), (all_found, none) = counts
    assert found + 2 >= compiled > 10 * more, counts
    assert (all_found, none) == (found + more, 0), counts


def test_everything_in_a_store_gives_what_a_local_run_gives(store, variables, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split, sides in {name: corpora.KINDS["cldr"].read(tiny.config().data, name) for name in corpora.SPLITS}.items():
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
    output = store.address("out/a.json")
    there = [f"--workdir={remote}", f"--input={store.address('text/test.en')}", f"--output={output}", *flags]
    found = run("decode.py", *there, f"--reference={store.address('text/test.de')}")
    assert found.returncode == 0, found.stderr
    assert stores.read(output) == (tmp_path / "out").read_bytes()
    assert [line for line in found.stderr.splitlines() if line.startswith("BLEU")]

    stores.write(store.address("config.py"), config.read_bytes())
    made = {tmp_path / "here": (local, text, config), store.address("made"): (remote, store.address("text"), "")}
    for folder, (workdir, texts, file) in made.items():
        for command in (
            ["attention", f"--input={texts}/test.en", "--formats=svg", f"--output={folder}/attention"],
            ["export", "--platforms=cpu", "--max_tokens=16", f"--output={folder}/export"],
            ["report", "--lines=4", f"--output={folder}/report"],
        ):
            done = run("-c", CONVS2S, command[0], f"--workdir={workdir}", *command[1:])
            assert done.returncode == 0, done.stderr
        more = [f"--config.training.finetune_from={workdir}", "--config.training.max_steps=2"]
        trained(file or store.address("config.py"), f"{folder}/tuned", *more)
    [own, other] = made
    assert arrays(f"{other}/tuned", 2) == local_arrays(own / "tuned", 2)
    for part, count in (("attention", 8), ("export", 8)):
        names = stores.names(f"{other}/{part}")
        assert names == sorted(path.name for path in (own / part).iterdir())
        assert len(names) >= count
        for name in names:
            assert stores.read(f"{other}/{part}/{name}") == (own / part / name).read_bytes(), name
    assert remote.encode() in stores.read(f"{other}/report/index.html")
    assert stores.names(f"{other}/report/translations")

    stores.write(output, stores.read(output) + b"more")
    refused = run("decode.py", *there, "--resume")
    assert refused.returncode == 2
    assert f"--resume: {output} has more than the 8 lines that were written; " in refused.stderr
    stores.write(output, (tmp_path / "out").read_bytes())
    resumed = run("decode.py", *there, "--resume")
    assert (resumed.returncode, stores.read(output)) == (0, (tmp_path / "out").read_bytes()), resumed.stderr
    assert f"{output} already has 8 of 8 lines; nothing left to do" in resumed.stderr
    other = run("decode.py", *there, "--resume", "--beam_size=1")
    assert other.returncode == 2
    assert f"--resume: {output} is the output of another command: --beam_size was 2 and is now 1" in other.stderr


def test_a_checkpoint_of_fairseq_is_imported_and_plans_are_written(store, variables, tmp_path):
    """What is in the store is what the same commands write to a folder, but for the places in it."""
    pytest.importorskip("torch")
    text = tmp_path / "fairseq"
    text.mkdir()
    _, args, tensors = examples.case()
    examples.save(text, examples.content(tensors, args))
    config = tiny.config_file(tmp_path, training__max_steps=1)
    stores.write(store.address("plan.py"), config.read_bytes())
    for folder, cfg in ((tmp_path, config), (store.address(""), "")):
        base = str(folder).rstrip("/")
        cfg = cfg or store.address("plan.py")
        for command in (
            ["import", f"--checkpoint={text}/checkpoint.pt", f"--dicts={text}", f"--workdir={base}/imported"],
            ["scale", "plan", f"--config={cfg}", "--topology=cpu:2", "--lengths=8", f"--json={base}/plan.json"],
        ):
            done = run("-c", CONVS2S, *command)
            assert done.returncode == 0, done.stderr
    [step] = store_copy.steps_of(stores.names(store.address("imported")))
    assert arrays(store.address("imported"), int(step)) == local_arrays(tmp_path / "imported", int(step))
    mine, theirs = json.loads((tmp_path / "plan.json").read_text()), json.loads(stores.read(store.address("plan.json")))
    assert (mine["tokens"], mine["resident"]) == (theirs["tokens"], theirs["resident"])
    stores.write(store.address("large.py"), bytes(2**24 + 1))
    done = run("-c", CONVS2S, "config", f"--config={store.address('large.py')}")
    assert f"--config={store.address('large.py')} cannot be read: it has more than 16,777,216 bytes" in done.stderr


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


@pytest.mark.parametrize(
    "machines", [(0, 0), (0, 1), (0, 0, 1, 1)], ids=["one copy", "a copy each", "two copies of two processes"]
)
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


@contextlib.contextmanager
def refusing(url, refuses):
    """A proxy of an emulator of Google's store: `refuses(n)` is whether it answers the n-th list, from 1, with 403."""
    refusal, lists = b'{"error": {"code": 403, "message": "x does not have storage.objects.list access"}}', []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def forward(self):
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.command == "GET" and self.path.partition("?")[0].endswith("/o"):
                lists.append(self.path)
                if refuses(len(lists)):
                    return self.reply(403, {}, refusal)
            heads = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            asked = urllib.request.Request(url + self.path, content or None, heads, method=self.command)
            try:
                with urllib.request.urlopen(asked, timeout=60) as found:
                    self.reply(found.status, found.headers, found.read())
            except urllib.error.HTTPError as found:
                self.reply(found.code, found.headers, found.read())

        do_GET = do_POST = do_PUT = do_DELETE = forward

        def reply(self, status, heads, content):
            self.send_response(status)
            for name, value in heads.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", lists
        server.shutdown()


@pytest.mark.parametrize("store", ["gs"], indirect=True)
def test_a_refused_list_loses_nothing(store, variables, tmp_path, tally):
    """TensorStore takes it for an empty folder. Without a check, the run began again and overwrote what was there."""
    config = tiny.config_file(tmp_path)
    trained(config, tmp_path / "local")
    expected, losses = local_arrays(tmp_path / "local", 8), 0
    cases = [*(frozenset({n}) for n in range(1, 7)), frozenset(range(2, 5)), frozenset(range(1, 1000))]
    for number, refused in enumerate(cases):
        workdir, more = store.address(f"refused{number}"), f"--config={config}"
        trained(config, workdir, "--config.training.max_steps=4")
        before = {name: stores.read(joined(workdir, name)) for name in stores.names(workdir)}
        with refusing(store.url, refused.__contains__) as (url, lists):
            caches = {"XDG_CACHE_HOME": str(tmp_path / f"caches{number}")}
            done = subprocess.run(
                [sys.executable, "train.py", more, f"--workdir={workdir}"],
                cwd=tiny.ROOT,
                env={**os.environ, **emulators.variables("gs", url), **caches},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        assert len(lists) >= 2
        if done.returncode == 0:
            kept = "continuing at step 4" in done.stderr and arrays(workdir, 8) == expected
        else:
            assert done.returncode == 2, done.stderr
            assert "its objects are not listed" in done.stderr
            after = {name: stores.read(joined(workdir, name)) for name in stores.names(workdir)}
            kept = after == before
        losses += not kept
    tally(tries=len(cases), losses=losses)
    assert done.returncode == 2  # all are refused


def test_a_bucket_that_is_not_there_is_one_sentence(store, variables, tmp_path):
    place = store.address("run", bucket="nowhere")
    for program, arguments in {
        "train.py": [f"--config={tiny.config_file(tmp_path)}", f"--workdir={place}"],
        "decode.py": [f"--workdir={place}"],
    }.items():
        found = run(program, *arguments)
        assert found.returncode == 2
        assert found.stderr.splitlines()[-1].startswith(f"{program}: --workdir={place} cannot be used: ")
        assert "Traceback" not in found.stderr


def test_credentials_that_are_refused_are_one_sentence(tmp_path, monkeypatch):
    with emulators.running("s3", INITIAL_NO_AUTH_ACTION_COUNT="2") as store:
        for name, value in store.variables.items():
            monkeypatch.setenv(name, value)
        found = run("train.py", f"--config={tiny.config_file(tmp_path)}", f"--workdir={store.address('run')}")
    assert found.returncode == 2
    assert "cannot be used: PERMISSION_DENIED: " in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
