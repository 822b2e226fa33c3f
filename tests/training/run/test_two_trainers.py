"""Whole trainings in one workdir: one works, the others are refused, and the run is that of one trainer."""

import random
import time

import pytest

from convs2s_jax.commands.train import console
from convs2s_jax.training.run.loop import train
from tests import processes, tiny

SEED = 16
DEVICES = 8
"""As many as the tests have: with another number, XLA's programs differ in the last bits."""
OPTIONS = {"training__save_every": 2, "training__report_every": 1, "training__validate_every": 1000}
TRIES, STEPS = 10, 6
"""Pairs of trainers, and the updates that each pair may add."""


def assert_that_of_one_trainer(workdir, folder, steps):
    """All files are as if one training had gone to `steps` without a disturbance."""
    whole = folder / "whole"
    train(tiny.config(**OPTIONS, training__max_steps=steps), whole)
    assert tiny.digests(workdir, steps) == tiny.digests(whole, steps)

    def lines(place):
        return [(line["step"], line["loss"]) for line in tiny.metrics(place) if line["split"] == "train"]

    assert lines(workdir) == lines(whole)
    assert not (workdir / "lock").exists()


@pytest.mark.drill
def test_a_second_start_is_refused_beside_a_first_and_begins_at_once_when_that_is_killed(tmp_path):
    workdir = tmp_path / "run"
    config = tiny.config_file(tmp_path, **OPTIONS)
    with processes.launched(config, workdir, DEVICES, [["--config.training.max_steps=100000"]], [{}]) as (first,):
        processes.wait_for_step([first], workdir, 4)
        kept = {name: (workdir / name).read_bytes() for name in ("config.json", "lock")}
        metrics = (workdir / "metrics.jsonl").stat()
        for options in (
            ["--config.training.max_steps=9"],
            ["--config.model.dropout=0.3", "--config.search.beam_size=7"],
        ):
            ended = processes.called(console, "train.py", f"--config={config}", f"--workdir={workdir}", *options)
            assert ended.returncode == 2
            assert ended.stderr.startswith(f"train.py: --workdir={workdir} is in use: process {first.popen.pid} on ")
            assert ended.stderr.count("\n") == 1
        assert kept == {name: (workdir / name).read_bytes() for name in kept}
        step = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
        processes.wait_for_step([first], workdir, step + 6)
        assert (workdir / "metrics.jsonl").stat().st_ino == metrics.st_ino
        assert (workdir / "metrics.jsonl").stat().st_size > metrics.st_size
        first.popen.kill()
        first.popen.wait()
    steps = step + 20
    arguments = ["train.py", f"--config={config}", f"--workdir={workdir}", f"--config.training.max_steps={steps}"]
    assert processes.called(console, *arguments).returncode == 0
    assert_that_of_one_trainer(workdir, tmp_path, steps)


@pytest.mark.drill
def test_pairs_of_trainers_that_start_at_random_are_never_both_at_work(tmp_path, tally):
    rng, workdir, losses = random.Random(SEED), tmp_path / "run", []
    config = tiny.config_file(tmp_path, **OPTIONS)
    for i in range(1, TRIES + 1):
        bound = [f"--config.training.max_steps={i * STEPS}"]
        with (
            processes.launched(config, workdir, DEVICES, [bound], [{}]) as (one,),
            processes.launched(config, tmp_path / "other", DEVICES, [[*bound, f"--workdir={workdir}"]], [{}]) as (two,),
        ):
            if rng.random() < 0.5:  # one of them is killed somewhere, the other goes on or is refused
                time.sleep(rng.uniform(0, 8))
                rng.choice((one, two)).popen.kill()
            for process in (one, two):
                status = process.wait()
                refused = status == 2 and f"--workdir={workdir} is in use: " in process.told
                if not (refused or status in (0, -9)) or "damaged" in process.told:
                    losses.append((i, status, process.told))
        print(i, one.popen.returncode, two.popen.returncode)  # noqa: T201
    train(tiny.config(**OPTIONS, training__max_steps=TRIES * STEPS), workdir)
    assert_that_of_one_trainer(workdir, tmp_path, TRIES * STEPS)
    print(losses)  # noqa: T201
    tally(tries=TRIES, losses=len(losses))
