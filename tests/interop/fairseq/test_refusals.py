"""What does not fit is refused with its differences, and nothing half-written stays."""

import json
import os
from pathlib import Path

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.interop.fairseq import examples
from tests.processes import called


@pytest.fixture
def values():
    return examples.whole()


@pytest.fixture
def file(values, tmp_path):
    return examples.save(tmp_path, values)


def refused(file, workdir, sentence, **options):
    there = sorted(path.name for path in workdir.parent.iterdir())
    with pytest.raises(UserError, match=sentence):
        examples.bring_in(file, workdir, **options)
    assert sorted(path.name for path in workdir.parent.iterdir()) == there


def without(mapping, *names):
    return {name: value for name, value in mapping.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: without(m, "encoder.fc1.bias"), "checkpoint.pt: .*encoder.fc1.bias is missing"),
        (lambda m: m | {"decoder.fc9.bias": m["decoder.fc2.bias"]}, "decoder.fc9.bias has no counterpart in the model"),
        (lambda m: m | {"decoder.fc2.bias": m["decoder.fc2.bias"][:3]}, r"decoder.fc2.bias has shape \(3,\), expected"),
        (lambda m: without(m, "decoder.embed_tokens.weight"), "decoder.embed_tokens.weight is missing"),
        (
            lambda m: m | {"encoder.embed_tokens.weight": m["encoder.embed_tokens.weight"][:1]},
            r"embed_tokens.weight has shape \(1,",
        ),
        (lambda m: {"w": m["decoder.fc2.bias"]}, r"encoder.embed_tokens.weight is missing; .*; and \d+ more"),
        (lambda m: m | {f"x{i}": m["decoder.fc2.bias"] for i in range(40)}, "; and 35 more"),
    ],
    ids=["missing", "surplus", "shape", "no table", "one row", "nothing fits", "many"],
)
def test_tensors_that_do_not_fit(values, tmp_path, change, sentence):
    values["model"] = change(values["model"])
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s["state"].popitem(), r"51 buffers for 52 parameters\), as after training in half"),
        (
            lambda s: s["param_groups"][0]["params"].pop(),
            "is not laid out like a fairseq checkpoint: KeyError: .*in no group",
        ),
    ],
    ids=["one less", "group"],
)
def test_momentum_that_does_not_fit_is_refused_or_left_out(values, tmp_path, change, sentence):
    change(values["last_optimizer_state"])
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", sentence)


def test_momentum_of_half_precision_training(values, tmp_path):
    """fairseq's FP16Optimizer keeps one flat buffer for all parameters."""
    state = values["last_optimizer_state"]
    state["state"], state["param_groups"][0]["params"] = {0: state["state"][0]}, [0]
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", r"1 buffers for \d+ parameters\), as after training in half precision")
    assert not any("momentum starts" in told for told in examples.bring_in(file, tmp_path / "run", momentum=False))


def test_dictionaries_that_do_not_fit(file, tmp_path):
    examples.write_dictionary(tmp_path, "de", 50)
    refused(
        file,
        tmp_path / "run",
        r"dict.de.txt has 46 entries and 4 special symbols \(50 in total\), but encoder.embed_tokens.weight",
    )
    (tmp_path / "dict.en.txt").unlink()
    refused(file, tmp_path / "run", "dict.en.txt is missing; set --dicts to the folder")


def test_models_of_pieces_that_do_not_fit(file, tmp_path):
    (tmp_path / "spm").write_text("no model")
    refused(file, tmp_path / "run", "spm contains no SentencePiece model", models=(tmp_path / "spm", tmp_path / "spm"))
    refused(file, tmp_path / "run", "cannot be read", models=(tmp_path / "no", tmp_path / "no"))
    device = Path("/dev/null")  # /dev/zero would be read for ever
    refused(file, tmp_path / "run", "null .*is a device or a pipe", models=(device, device))


def test_languages_have_to_be_known(values, tmp_path):
    del values["args"].source_lang
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", "does not specify its languages; set --source_lang and --target_lang")
    examples.bring_in(file, tmp_path / "run", languages=("de", ""))


def test_a_workdir_that_is_taken(file, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    examples.bring_in(file, workdir)  # an empty folder is free
    before = sorted(str(path) for path in workdir.rglob("*"))
    refused(file, workdir, "run already exists: choose a new folder; nothing was written")
    assert sorted(str(path) for path in workdir.rglob("*")) == before
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--workdir=.*file/run cannot be written: Not a directory"):
        examples.bring_in(file, tmp_path / "file" / "run")


def test_a_second_checkpoint_that_fails_leaves_none_of_the_first(file, values, tmp_path):
    values["model"].popitem()
    bad = examples.save(tmp_path, values, "bad.pt")
    workdirs = [tmp_path / "a", tmp_path / "b"]
    refused(file, tmp_path / "a", "is missing", checkpoints=[file, bad], workdirs=workdirs)


def test_a_failure_while_writing_leaves_nothing(file, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vocabulary, "save", full)
    refused(file, tmp_path / "run", r"--workdir=.*run cannot be written: No space left on device")


def test_a_second_workdir_that_cannot_be_written_leaves_none_of_the_first(file, tmp_path, monkeypatch):
    save, calls = vocabulary.save, []

    def full_at_last(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(vocabulary, "save", full_at_last)
    workdirs = [tmp_path / "a", tmp_path / "b"]
    refused(file, tmp_path / "a", "No space left on device", checkpoints=[file] * 2, workdirs=workdirs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"workdirs": ["a", "b"]},
            "--checkpoint lists 1 files and --workdir lists 2; specify one workdir for each checkpoint",
        ),
        ({"average": True}, "--average was given 1 checkpoints and 1 workdirs; it requires at least two"),
        ({"checkpoints": 2, "workdirs": ["a", "a"]}, "a is listed twice"),
    ],
)
def test_numbers_that_do_not_go_together(file, tmp_path, options, sentence):
    options = dict(options)
    if "workdirs" in options:
        options["workdirs"] = [tmp_path / name for name in options["workdirs"]]
    if "checkpoints" in options:
        options["checkpoints"] = [file] * options["checkpoints"]
    refused(file, tmp_path / "run", sentence, **options)


def test_exports_that_are_refused_leave_nothing(file, tmp_path, monkeypatch):
    examples.bring_in(file, tmp_path / "run")
    out = tmp_path / "out"
    out.mkdir()

    def stays(sentence, there, **options):
        with pytest.raises(UserError, match=sentence):
            examples.take_out(**{"workdir": tmp_path / "run", "output": out / "x.pt", **options})
        assert sorted(path.name for path in out.iterdir()) == there

    stays("both sides are named 'en'; set --source_lang", [], languages=("en", ""))
    stays("has no checkpoint of step 3; it has 40", [], step=3)
    stays("contains no config.json", [], workdir=out)
    stays("is a folder; specify a file in it", [], output=out)
    labels = tmp_path / "labels"
    labels.mkdir()
    data = {"corpus": "tsv", "dir": "x"}
    run_folder.write_config(labels, build(Config, {"data": data, "model": {"kind": "classifier", "embedding_dim": 8}}))
    stays("model.kind is 'classifier', which does not translate", [], workdir=labels)  # not: both sides are named ''
    (out / "dict.de.txt").write_text("mine\n")
    stays("x.pt would overwrite dict.de.txt; choose a file in a new folder", ["dict.de.txt"])
    assert (out / "dict.de.txt").read_text() == "mine\n"
    with pytest.raises(UserError, match="cannot be written: No such file"):
        examples.take_out(tmp_path / "run", out / "deeper" / "still" / "x.pt")
    (out / "x.pt").write_text("mine")
    monkeypatch.setattr(restoring, "restore_items", lambda *_, **__: pytest.fail("it was restored first"))
    stays("x.pt would overwrite x.pt; choose a file in a new folder", ["dict.de.txt", "x.pt"])
    os.mkfifo(out / "pipe.pt")
    there = ["dict.de.txt", "pipe.pt", "x.pt"]
    stays("pipe.pt would overwrite pipe.pt; choose a file in a new folder", there, output=out / "pipe.pt")


@pytest.mark.drill
def test_a_run_of_train_is_exported_with_its_subword_units(tmp_path):
    """SentencePiece vocabularies become dictionaries of the same ids, and the model goes beside them."""
    pytest.importorskip("torch")
    train(tiny.config(training__max_steps=1), tmp_path / "run")
    told = examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    assert "x.pt: wrote step 1 of " in told[-1]
    own = examples.held(tmp_path / "run")[1]
    spm = [tmp_path / "out" / f"spm.{name}.model" for name in ("en", "de")]
    examples.bring_in(tmp_path / "out" / "x.pt", tmp_path / "again", models=tuple(spm))
    again = examples.held(tmp_path / "again")[1]
    lines = ["5 kilowatts", "January 3, 2024", "Norway and Sweden"]
    for mine, theirs in ((own.src, again.src), (own.tgt, again.tgt)):
        assert [mine.token(i) for i in range(4, mine.size)] == [theirs.token(i) for i in range(4, theirs.size)]
        assert mine.encode(lines) == theirs.encode(lines)
        assert [mine.decode(ids) for ids in mine.encode(lines)] == [theirs.decode(i) for i in theirs.encode(lines)]
    assert tiny.digests(tmp_path / "run", 1)["params"] == tiny.digests(tmp_path / "again", 1)["params"]
    assert tiny.digests(tmp_path / "run", 1)["optimizer"] == tiny.digests(tmp_path / "again", 1)["optimizer"]


@pytest.mark.drill
def test_adam_comes_and_goes_without_its_state(values, tmp_path):
    values["args"].optimizer = "adam"
    told = examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    assert "momentum starts from zero (training.optimizer is 'adam')" in " ".join(told)
    told = examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    assert "there is no optimiser state; fairseq-train starts with a new one" in " ".join(told)
    assert "AdamW" not in " ".join(told)
    told = examples.bring_in(tmp_path / "out" / "x.pt", tmp_path / "again")
    assert "momentum starts from zero (training.optimizer is 'adam')" in " ".join(told)


@pytest.mark.drill
def test_an_export_says_that_fairseq_has_another_adam_than_adamw(values, tmp_path):
    values["args"].optimizer = "adam"
    examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    content = json.loads(config.read_text())
    content["training"]["optimizer"] = {"kind": "adamw"}
    del content["checksum"]
    config.write_text(json.dumps(content))
    told = examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    assert "fairseq-train continues with its Adam, which adds eps before bias correction" in " ".join(told)


# The command line.


def convs2s(command, *arguments):
    """`convs2s COMMAND` within this process."""
    return called(lambda given: COMMANDS[command].run([f"convs2s {command}", *given]), *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["import", "--dicts={tmp}"], "--checkpoint is missing: import needs --checkpoint, --dicts and --workdir"),
        (["import", "--checkpiont=a"], "--checkpiont is not a flag of this command; did you mean 'checkpoint'?"),
        (
            ["export", "--workdir=x", "--output=y.pt", "--source_lang=a/b"],
            "--source_lang=a/b: a language is part of a file name; use a code such as en",
        ),
        (
            ["import", "--checkpoint=a", "--dicts=b", "--workdir=c", "--source_lang=en", "--target_lang=en"],
            "--source_lang and --target_lang are both en: their dictionaries would have the same name; use two",
        ),
        (["export", "--output=y.pt"], "--workdir is missing: export needs --workdir and --output"),
        (
            ["export", "--workdir=x", "--output=y.pt", "--config.seed=3"],
            "--config.seed: an export uses the configuration",
        ),
        (
            ["import", "--checkpoint=a", "--dicts=b", "--workdir=c", "--src_spm=d"],
            "--src_spm and --tgt_spm go together",
        ),
        (
            ["import", "--checkpoint=a", "--dicts=b", "--workdir=c", "--bpe_codes=d,e,f"],
            "--bpe_codes lists 3 files; specify one for both sides, or two as SRC,TGT",
        ),
        (
            ["import", "--checkpoint=a", "--dicts=b", "--workdir=c", "--src_spm=d", "--tgt_spm=e", "--bpe_codes=f"],
            "--bpe_codes and --src_spm both split text into pieces; use the one that the model was trained with",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_status_2(arguments, sentence, tmp_path):
    result = convs2s(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith(f"convs2s {arguments[0]}: ")
    assert sentence in result.stderr


@pytest.mark.drill
def test_there_and_back_by_the_command_line(file, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    wanted = "--config.training.keep=5"
    result = convs2s("import", f"--checkpoint={file}", f"--dicts={tmp_path}", f"--workdir={run}", wanted)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert run_folder.load_config(run).training.keep == 5
    assert result.stderr.splitlines()[-1].startswith(
        f"{run}: step 40, epoch 2; translate with convs2s decode --workdir={run}"
    )
    out.mkdir()
    result = convs2s("export", f"--workdir={run}", f"--output={out}/x.pt")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert sorted(path.name for path in out.iterdir()) == ["dict.de.txt", "dict.en.txt", "x.pt"]
    again = convs2s("import", f"--checkpoint={file}", f"--dicts={tmp_path}", f"--workdir={run}")
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert run_folder.has_checkpoint(run)
    assert isinstance(vocabulary.load(run_folder.vocabulary(run)), Vocabularies)
