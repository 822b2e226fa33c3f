"""`convs2s average`: its workdir decodes as the mean it was made of, and begins a fine-tuning."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir, position_file
from convs2s_jax.training.run.checkpoints.checkpoint import known_scores
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import abstract_state
from convs2s_jax.translation.averaging import write_average
from tests import stores, tiny
from tests.processes import called

bucket, requests = stores.bucket, stores.requests


def averaged(*arguments):
    return called(lambda given: COMMANDS["average"].run(["convs2s average", *given]), *arguments)


@pytest.fixture(scope="module")
def mean(trained, tmp_path_factory) -> Path:
    """The mean of the last two of three checkpoints."""
    path = tmp_path_factory.mktemp("mean") / "new" / "run"
    result = averaged(f"--workdir={trained}", "--checkpoint=last:2", f"--output={path}")
    assert result.returncode == 0, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last == f"{path}: the average of steps 2, 3 of {trained}; decode with convs2s decode --workdir={path}"
    return path


def test_it_decodes_and_scores_as_the_mean_of_the_checkpoints(desk, trained, mean):
    for name, workdir, checkpoint in (("here", mean, ()), ("there", trained, ("last:2",)), ("best", trained, ())):
        desk.workdir = workdir
        desk.decode(output=name, checkpoint=checkpoint, format="json", reference=True)
    assert desk.read("here") == desk.read("there") != desk.read("best")


def test_its_position_is_that_of_the_newest_and_names_all(trained, mean):
    places = [run_folder.finished(run_folder.checkpoints(workdir)) for workdir in (trained, mean)]
    assert list(places[1]) == [3]
    theirs, ours = (position_file.read(place[3]) for place in places)
    assert ours["averaged"] == {"workdir": str(trained), "steps": [2, 3]}
    assert all(ours[name] == theirs[name] for name in {*ours, *theirs} - {"averaged", "digests"})
    known = [known_scores(run_folder.checkpoints(workdir)) for workdir in (trained, mean)]
    assert known[0]
    assert not known[1][3]  # nobody has measured it
    assert run_folder.load_config(mean) == run_folder.load_config(trained)


def test_no_training_goes_on_there_and_another_begins_with_it(mean, trained):
    cfg = run_folder.load_config(mean)
    files = sorted(path for path in mean.rglob("*"))
    for seed in (cfg.seed, 7):
        with pytest.raises(
            UserError,
            match=r"contains an average of checkpoints, from which .* cannot .*finetune_from=/",
        ):
            train(dataclasses.replace(cfg, seed=seed), mean)
    assert sorted(path for path in mean.rglob("*") if path.name != "lock") == files
    tuned = dataclasses.replace(cfg, training=dataclasses.replace(cfg.training, finetune_from=str(mean)))
    known = finetuning.vocabularies(tuned)
    sizes = {"source": known.src.size, "target": known.tgt.size}
    state = abstract_state(cfg.model, cfg.training, **sizes)
    told = []
    finetuning.parameters(tuned, known, state.params, told.append)
    assert told == [f"fine-tuning: parameters of step 3 of {mean}"]


def test_a_run_in_a_store_is_averaged_into_a_local_workdir(trained, mean, bucket, tmp_path):
    shutil.copytree(trained, bucket / "runs" / "a")
    write_average("gs://bucket/runs/a", str(tmp_path / "mean"), ("2", "3"), print)
    assert tiny.digests(tmp_path / "mean", 3)["params"] == tiny.digests(mean, 3)["params"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workdir=RUN"], "--output is missing: set --workdir and --output"),
        (["--workdir=no", "--output=new"], "--workdir=no: there is no such folder"),
        (["--workdir=RUN", "--output=RUN/../run"], "is the folder of --workdir; choose a new folder; nothing was writ"),
        (
            ["--workdir=RUN", "--output=there"],
            "--output=there already exists: choose a new folder; nothing was written",
        ),
        (["--workdir=RUN", "--output=RUN/checkpoints/9"], "/checkpoints/9 belongs to the run in "),
        (["--workdir=RUN", "--output=there/file/new"], "--output=there/file/new cannot be written: Not a directory"),
        (["--workdir=RUN", "--output=a/new", "--checkpoint=last:4"], "--checkpoint contains 'last:4', but "),
        (["--workdir=RUN", "--output=a/new", "--checkpoint=2,9"], "has no checkpoint of step 9; it has 1, 2, 3"),
        (["--workdir=RUN", "--output=new", "--config.seed=2"], "--config.seed: an average uses the configuration"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_mistakes_are_told_in_one_sentence_and_nothing_is_written(arguments, sentence, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    result = averaged(*(argument.replace("RUN", str(trained)) for argument in arguments))
    assert result.returncode == 2
    assert sentence in result.stderr.strip().splitlines()[-1]
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]


def test_an_empty_folder_is_filled_and_an_error_leaves_it(tmp_path):
    place = tmp_path / "empty"
    place.mkdir()

    def fail():
        with derived_workdir.new("--output", str(place)) as folder:
            (folder / "part").touch()
            raise UserError("why")

    with pytest.raises(UserError, match="why"):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    with derived_workdir.new("--output", str(place)) as folder:
        (folder / "file").touch()
    assert (place / "file").exists()
