"""Faults that really happen to one process: killed at any moment, no room on the disk."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from convs2s_jax.training.run.loop import train
from tests import processes, tiny
from tests.processes import await_, saved

STEPS = 100
KILLS, STOPS, MOVES = 20, 10, 10
OPTIONS = {"training__max_steps": STEPS, "training__save_every": 1, "training__report_every": 10}


def run_to_the_end(config, workdir):
    process = processes.Process([f"--config={config}", f"--workdir={workdir}"], 1, workdir.parent / "log.txt")
    assert process.wait() == 0, process.told


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run that nothing disturbs; it leaves compiled programs to the others."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_to_the_end(tiny.config_file(folder, **OPTIONS), folder / "run")
    return folder / "run"


def lives(folder, rng, count, number):
    """A run that gets a signal at `count` random moments: for each life its status, its sentences and what was saved.

    Moments lie within loading, compiling, updates and saves.
    """
    config, workdir = tiny.config_file(folder, **OPTIONS), folder / "run"
    for life in range(count):
        before = saved(workdir)
        process = processes.Process([f"--config={config}", f"--workdir={workdir}"], 1, folder / f"{life}.txt")
        early = rng.random() < 0.4 or before > STEPS / 2  # on the way to the first update, or within it
        begun = "vocabularies of" if rng.random() < 0.7 else "devices"
        more = rng.randint(1, 4)
        await_(lambda: begun in process.told if early else saved(workdir) >= before + more, process)  # noqa: B023
        time.sleep(rng.uniform(0, 0.15))
        assert process.popen.poll() is None, process.told
        process.popen.send_signal(number)
        yield process.wait(), process.told, before, saved(workdir)


def end(folder, undisturbed):
    """Run to the end, where the parameters are those of the undisturbed run."""
    assert 0 < saved(folder / "run") < STEPS
    run_to_the_end(folder / "tiny.py", folder / "run")
    assert tiny.digests(folder / "run", STEPS) == tiny.digests(undisturbed, STEPS)


@pytest.mark.drill
def test_killed_twenty_times_at_random_moments_a_run_ends_with_the_same_parameters(tmp_path, undisturbed, tally):
    lost = 0
    for status, told, before, after in lives(tmp_path, random.Random(1), KILLS, signal.SIGKILL):
        assert status == -signal.SIGKILL, told
        lost += after < before
    end(tmp_path, undisturbed)
    tally(tries=KILLS, losses=lost)


@pytest.mark.drill
def test_stopped_ten_times_at_random_moments_a_run_ends_with_the_same_parameters(tmp_path, undisturbed, tally):
    """Each life ends with status 0 and its sentence, and its last update is saved."""
    lost = 0
    for status, told, before, after in lives(tmp_path, random.Random(2), STOPS, signal.SIGTERM):
        stopped = re.search(r"stopped at step (\d+), epoch \d+: SIGTERM", told)
        nothing = "SIGTERM: stopped before the first update; there was nothing to save" in told
        right = int(stopped[1]) == after >= before if stopped else nothing and after == before
        lost += status != 0 or not right or "Traceback" in told
    end(tmp_path, undisturbed)
    tally(tries=STOPS, losses=lost)


@pytest.mark.drill
def test_moved_ten_times_at_random_moments_a_run_stops_and_goes_on_where_it_is(tmp_path, undisturbed, tally):
    rng, lost = random.Random(3), 0
    config, workdir, moved = tiny.config_file(tmp_path, **OPTIONS), tmp_path / "run", tmp_path / "moved"
    for life in range(MOVES):
        before = saved(workdir)
        process = processes.Process([f"--config={config}", f"--workdir={workdir}"], 1, tmp_path / f"{life}.txt")
        await_(lambda: saved(workdir) > before, process)  # noqa: B023
        time.sleep(rng.uniform(0, 0.1))
        workdir.rename(moved)
        lost += process.wait() != 2 or "Traceback" in process.told or saved(moved) <= before or workdir.exists()
        shutil.rmtree(workdir, ignore_errors=True)
        moved.rename(workdir)
    end(tmp_path, undisturbed)
    tally(tries=MOVES, losses=lost)


SMALL_DISK = """
    mount -t tmpfs -o size={size} tmpfs "$1" || exit 99
    shift
    "$@"; first=$?
    mount -o remount,size=100m tmpfs "{disk}"
    "$@"; second=$?
    cp -r "{disk}/run" "{kept}"
    echo "ended with $first, then $second"
"""


SAVES = {"training__max_steps": 40, "training__save_every": 1, "training__keep": 100}
NUMBERS = {"training__max_steps": 200, "training__save_every": 1000, "training__report_every": 1}
FULL = {  # what does not fit
    "the first checkpoint": ("100k", SAVES),
    "the numbers of the first epochs": ("150k", NUMBERS),
    "the numbers of later epochs": ("200k", NUMBERS),
    "an early checkpoint": ("250k", SAVES),
    "a later checkpoint": ("1200k", SAVES),
}
OF_LIBRARIES = ("Traceback", "Exception", "ERROR", "WARNING", "event loop", "Task")


@pytest.mark.drill
@pytest.mark.parametrize("name", FULL)
def test_on_a_full_disk_a_run_stops_with_a_sentence_and_goes_on_when_there_is_room(tmp_path, name, tally):
    """Where the numbers did not fit, tensorboardX's thread ended with a traceback and the run waited for ever."""
    disk, kept, (size, options) = tmp_path / "disk", tmp_path / "kept", FULL[name]
    disk.mkdir()
    config = tiny.config_file(tmp_path, **options)
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) makes the small disk")
    script = SMALL_DISK.format(disk=disk, kept=kept, size=size)
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(disk)]
    command += [sys.executable, "train.py", f"--config={config}", f"--workdir={disk}/run"]
    ended = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, timeout=200, check=False)
    if ended.returncode in (1, 99) and "ended with" not in ended.stdout:
        pytest.skip(f"this machine lets no user mount a disk: {ended.stderr.strip()}")
    assert "ended with 2, then 0" in ended.stdout, ended.stderr
    assert not [word for word in OF_LIBRARIES if word in ended.stderr], ended.stderr
    [sentence] = [line for line in ended.stderr.splitlines() if line.startswith("train.py: ")]
    assert "No space left on device" in sentence
    assert "run the same command again" in sentence
    assert str(disk) in sentence
    train(tiny.config(**options), tmp_path / "undisturbed")
    last = options["training__max_steps"]
    tally(tries=1, losses=int(tiny.digests(kept, last) != tiny.digests(tmp_path / "undisturbed", last)))
