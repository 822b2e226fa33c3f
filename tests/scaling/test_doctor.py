"""What the doctor says of facts, and facts of this process."""

from functools import partial

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import stores
from convs2s_jax.scaling import doctor
from tests import processes, tiny
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

WORKDIR = {"path": "/runs/a", "there": True, "free": 5e9, "error": ""}
HEALTHY = {
    "clock": 100.0,
    "process": 0,
    "host": "a",
    "versions": {"Python": "3.11.7", "jax": "0.10.2"},
    "devices": "4 x TPU v5 lite",
    "workdir": WORKDIR,
    "data": {"train": "aa", "valid": "bb"},
    "unread": {},
    "product_rate": 1e12,
}


def two(**changes):
    """Facts of two processes; the second has changes."""
    return [HEALTHY, {**HEALTHY, "process": 1, "host": "b", **changes}]


def sentences(seen, *, wrong):
    return [each.sentence for each in doctor.findings(seen) if each.wrong == wrong]


def doctored(*arguments):
    """The command within this process."""
    return processes.called(lambda given: COMMANDS["scale doctor"].run(["doctor", *given]), *arguments)


def test_nothing_is_wrong_with_processes_that_are_alike():
    assert sentences(two(), wrong=True) == []
    told = sentences(two(), wrong=False)
    assert told[0] == "process 0 on a: 4 x TPU v5 lite"
    assert "versions: Python 3.11.7, jax 0.10.2" in told
    assert "workdir: /runs/a, 5.0 GB free" in told


NONE = {"train": "no such folder", "valid": "no such folder"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"versions": {"Python": "3.11.7", "jax": "0.11.0"}},
            "jax: process 1 has 0.11.0, process 0 has 0.10.2; install the same version",
        ),
        ({"devices": "3 x TPU v5 lite"}, "devices: process 1 has 3 x TPU v5 lite, process 0 has 4 x TPU v5 lite"),
        ({"clock": 103.5}, "clocks are 3.5 s apart; synchronise them with NTP"),
        ({"data": {"train": "aa", "valid": "cc"}}, "valid data: process 1 has cc, process 0 has bb; copy the same fil"),
        ({"data": {}, "unread": NONE}, "process 1 cannot read the data (train, valid): no such folder"),
        ({"product_rate": 0.5e12}, "process 1 on b computes at 500 GFLOP/s; look for other programs"),
        (
            {"workdir": {**WORKDIR, "error": "--workdir=x is not one folder"}},
            "process 1: --workdir=x is not one",
        ),
    ],
)
def test_each_difference_is_a_sentence_with_a_way_out(changes, sentence):
    (found,) = sentences(two(**changes), wrong=True)
    assert found.startswith(sentence)


def test_process_0_knows_whether_the_folder_was_there():
    """The others see it after process 0 has made it, and may have less room."""
    missing = {**WORKDIR, "there": False}
    seen = [{**HEALTHY, "workdir": missing}, *two(workdir={**WORKDIR, "free": 1e9})[1:]]
    assert "workdir: /runs/a does not exist yet (a run would create it), 1.0 GB free" in sentences(seen, wrong=False)


def test_the_command_tells_of_this_process(tmp_path):
    """A folder that is missing is named, and not left behind."""
    given = tiny.config_file(tmp_path, data__cldr={"train": 20, "valid": 4, "test": 4})
    found = doctored(f"--config={given}", f"--workdir={tmp_path}/typo/run")
    assert found.returncode == 0, found.stderr
    assert "process 0 on " in found.stdout
    assert "train data: " in found.stdout
    assert "an all-reduce over 8 devices sends " in found.stdout
    assert f"workdir: {tmp_path}/typo/run does not exist yet (a run would create it), " in found.stdout
    assert not (tmp_path / "typo").exists()


def test_what_is_missing_is_wrong_and_ends_with_status_2(tmp_path):
    (tmp_path / "file").touch()
    flags = ("--config=iwslt14_de_en", f"--config.data.dir={tmp_path}/none", f"--workdir={tmp_path}/file/run")
    found = doctored(*flags)
    assert found.returncode == 2
    place = f"process 0: --workdir={tmp_path}/file/run cannot be written: Not a directory; use another workdir"
    missing = f"process 0 cannot read the data (train, valid, test): data.dir is '{tmp_path}/none': this folder"
    assert f"WRONG: {place}" in found.stdout
    assert f"WRONG: {missing}" in found.stdout
    assert f"2 problems found: {place}" in found.stderr


def test_validation_text_that_training_requires_is_missing(tmp_path):
    """Unless data.hold_out is 0, which trains without."""
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("a b\n" * 4)
    read = partial(tiny.config, data__corpus="files", data__dir=str(tmp_path), data__src="de", data__tgt="en")
    data, unread = doctor.splits(read(data__hold_out=None))
    assert (sorted(data), list(unread)) == (["test", "train"], ["valid"])
    data, unread = doctor.splits(read(data__hold_out=0))
    assert (data["valid"], unread) == ("none", {})


def test_a_store_is_listed_and_written_and_then_as_before(bucket, requests):  # noqa: F811
    bucket.mkdir()
    found = doctored("--workdir=gs://bucket/run/")
    assert found.returncode == 0, found.stderr
    assert "workdir: gs://bucket/run/ does not exist yet (a run would create it), " in found.stdout
    assert "GB free for a copy on each machine; it can be listed, read and written" in found.stdout
    assert [action for action, _ in requests] == ["write", "delete"]
    assert stores.names("gs://bucket") == []


def test_folders_of_two_processes_are_compared_and_nothing_is_left(tmp_path):
    (_, first), (_, second) = processes.scaled("doctor", *([f"--workdir={tmp_path}/{name}/run"] for name in "ab"))
    told = f"\nWRONG: process 0: --workdir={tmp_path}/a/run is not the same folder for all processes: it must"
    assert told in first, first + second
    assert list(tmp_path.iterdir()) == []
