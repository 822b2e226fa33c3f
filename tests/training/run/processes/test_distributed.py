"""Several processes: what one process with as many devices computes, and no fault of one of them loses work."""

import re
import shutil
import signal
from importlib.metadata import version

import numpy as np
import pytest

from convs2s_jax.training.run.loop import train
from tests import processes, tiny

STEPS = 12
OPTIONS = {
    "training__max_steps": STEPS,
    "training__save_every": 1,
    "training__report_every": 1,
    "training__validate_bleu": True,
}
SILENT = {"training__validate_bleu": False}
"""Where parameters alone are compared: a search takes a third of the time to compile."""
FSDP = {"mesh__data": 1, "mesh__fsdp": -1}
DATA = {"mesh__data": -1}
PMAP = {"mesh__data": -1, "parallel": "pmap"}
MARGIN = 30
"""Seconds beyond the heartbeat's: JAX looks every few seconds, and two cores are shared."""


def config_file(folder, **options):
    folder.mkdir(exist_ok=True)
    return tiny.config_file(folder, **{**OPTIONS, **options})


def in_one_process(folder, **options):
    """Four devices, never disturbed."""
    train(tiny.config(**{**OPTIONS, "mesh__data": 4, "training__save_every": STEPS, **options}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return in_one_process(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    return in_one_process(tmp_path_factory.mktemp("silent"), **SILENT)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes of two devices, parameters cut over all four, in a folder whose name Orbax takes for a pattern."""
    folder = tmp_path_factory.mktemp("two")
    told = processes.run(config_file(folder, **FSDP, **SILENT, training__save_every=STEPS), folder / "[run]", 2, 2)
    assert "devices: 4 x cpu in 2 processes; jit over fsdp 4" in told[0]
    assert "step" not in re.sub(r"\[Gloo\].*", "", told[1])  # process 0 alone speaks
    return folder / "[run]"


def assert_same(one, other):
    """Losses of all steps, BLEU where there is one, and all parameters."""
    ours, theirs = tiny.metrics(one), tiny.metrics(other)
    assert [(line["step"], line["split"]) for line in ours] == [(line["step"], line["split"]) for line in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a.get("bleu") == b.get("bleu")
    assert_same_parameters(one, other)


def assert_same_parameters(one, other):
    theirs = tiny.arrays(other, STEPS)
    for name, a in tiny.arrays(one, STEPS).items():
        assert np.linalg.norm(a - theirs[name]) <= 1e-5 * max(np.linalg.norm(theirs[name]), 1e-3), name


@pytest.mark.drill
def test_two_processes_equal_one(two, silent):
    assert_same(two, silent)


CUT = {"mesh__data": 4, "mesh__fsdp": 2}
EACH = {
    "four": (4, 1, DATA),
    "pmap": (2, 2, PMAP),
    "pmap in four": (4, 1, PMAP),
    **{
        f"{way} in {count}": (count, 8 // count, {**CUT, "parallel": way})
        for way in ("jit", "shard_map")
        for count in (2, 4)
    },
}


@pytest.mark.drill
@pytest.mark.parametrize(("count", "devices", "options"), EACH.values(), ids=EACH)
def test_other_numbers_and_ways_equal_one(tmp_path, whole, count, devices, options):
    processes.run(config_file(tmp_path, **options), tmp_path / "run", count, devices)
    assert_same(tmp_path / "run", whole)
    assert any("bleu" in line for line in tiny.metrics(whole))
    assert len((tmp_path / "run" / "samples" / f"{STEPS}.jsonl").read_text().splitlines()) == 12


@pytest.mark.drill
def test_a_signal_to_one_process_ends_both_at_one_step_and_any_topology_goes_on(tmp_path, whole):
    """2 processes, then 1 with one device, then 2 with another way."""
    workdir, config = tmp_path / "run", config_file(tmp_path, **FSDP, **SILENT)
    with processes.running(config, workdir, 2, 2) as both:
        processes.wait_for_step(both, workdir, 2)
        both[1].popen.send_signal(signal.SIGTERM)
        assert [process.wait() for process in both] == [0, 0]
        (stopped,) = re.findall(r"stopped at step (\d+), epoch \d+: SIGTERM", both[0].told)
    saved = max(int(entry.name) for entry in (workdir / "checkpoints").iterdir() if entry.name.isdigit())
    assert 2 <= saved == int(stopped) < STEPS
    bound = max(8, saved)
    train(tiny.config(**{**OPTIONS, **SILENT, "training__max_steps": bound, "mesh__data": 1}), workdir)
    processes.run(config_file(tmp_path, **PMAP, **SILENT), workdir, 2, 2)
    assert_same_parameters(workdir, whole)


@pytest.mark.drill
def test_a_killed_process_ends_the_other_and_nothing_is_lost(tmp_path, two):
    """Restarted, with the newest checkpoint damaged in the part of one process, it is bitwise the undisturbed run."""
    workdir, config = tmp_path / "run", config_file(tmp_path, **FSDP, **SILENT)
    with processes.running(config, workdir, 2, 2, heartbeat=10) as both:
        processes.wait_for_step(both, workdir, 4)
        both[1].popen.send_signal(signal.SIGKILL)
        status = both[0].wait(10 + MARGIN)
        # within a sum of gradients the network tells at once; where it waits for the other in a save, JAX's heartbeat
        ours = "another process of this command was lost .*run the same command again on all of them"
        theirs = "This most likely indicates that another task died"
        assert re.search({75: ours, -signal.SIGABRT: theirs}[status], both[0].told)
    saved = max(int(entry.name) for entry in (workdir / "checkpoints").iterdir() if entry.name.isdigit())
    of_one = sorted((workdir / "checkpoints" / str(saved) / "params" / "ocdbt.process_1" / "d").iterdir())
    for path in of_one:
        path.write_bytes(bytes(path.stat().st_size))
    told = processes.run(config, workdir, 2, 2)
    assert f"the checkpoint of step {saved} is damaged" in told[0]
    assert f"continuing at step {saved - 1}" in told[0]
    assert tiny.digests(workdir, STEPS) == tiny.digests(two, STEPS)


def test_processes_of_another_configuration_are_refused(tmp_path):
    config = config_file(tmp_path, **DATA)
    with processes.running(config, tmp_path / "run", 2, 1, others=[[], ["--config.seed=7"]]) as both:
        assert_refused(
            both, r"different configuration from process 0 \(seed is 1 on process 0 and 7 on process 1\): all"
        )
    assert not (tmp_path / "run" / "config.json").exists()


def assert_refused(both, sentence):
    assert [process.wait() for process in both] == [2, 2], both[0].told
    assert any(re.search(f"process 1 has a {sentence}", process.told) for process in both), both[0].told


def other_loss(folder):
    """A file of the package, anywhere, is another one."""
    shutil.copytree(tiny.ROOT / "convs2s_jax", folder / "convs2s_jax")
    path = folder / "convs2s_jax" / "training" / "loss.py"
    path.write_text(path.read_text() + "\n")
    return r"checksum of convs2s_jax/training/loss\.py is '\w+' on process 0 and '\w+' on process 1"


def other_version(folder):
    (folder / "orbax_checkpoint-0.1.dist-info").mkdir(parents=True)
    (folder / "orbax_checkpoint-0.1.dist-info" / "METADATA").write_text("Name: orbax-checkpoint\nVersion: 0.1\n")
    return rf"version of orbax-checkpoint is '{version('orbax-checkpoint')}' on process 0 and '0\.1' on process 1"


@pytest.mark.drill
@pytest.mark.parametrize("other", [other_loss, other_version])
def test_processes_of_another_program_are_refused(tmp_path, other, tally):
    """Where only one halved its loss, all checkpoints were damaged."""
    sentence = other(tmp_path / "other")
    paths = [{"PYTHONSAFEPATH": "1", "PYTHONPATH": path} for path in (f"{tiny.ROOT}", f"{tmp_path}/other:{tiny.ROOT}")]
    with processes.running(config_file(tmp_path, **DATA), tmp_path / "run", 2, 1, variables=paths) as both:
        assert_refused(both, rf"different program from process 0 \({sentence}\): install the same on all")
    assert not (tmp_path / "run" / "config.json").exists()
    tally(tries=1)
