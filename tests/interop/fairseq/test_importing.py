"""Checkpoints of fairseq to workdirs: fairseq's numbers, translations and next updates; on a mistake, no workdir."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.commands import decode
from convs2s_jax.core import stores
from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.data import vocabulary
from convs2s_jax.interop import fairseq
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import compile_configured
from convs2s_jax.training.step import Batch, update
from tests import golden as cases
from tests import tiny
from tests.helpers import drills_but
from tests.interop.fairseq import examples
from tests.processes import called
from tests.stores import bucket, temporary  # noqa: F401  (fixtures)


def merged_tensors(tensors):
    """A state dict after fairseq's removal of weight norm, by loops over norms."""
    result = {name: value for name, value in tensors.items() if "weight_" not in name}
    for name, v in tensors.items():
        if name.endswith("weight_v"):
            g = tensors[name.removesuffix("v") + "g"]
            axes = tuple(axis for axis, size in enumerate(g.shape) if size == 1)
            result[name.removesuffix("_v")] = v * g / np.sqrt(np.sum(v.astype(np.float64) ** 2, axes, keepdims=True))
    return {name: value.astype(np.float32) for name, value in result.items()}


def without_version(tensors):
    return {name: value for name, value in tensors.items() if name != "decoder.version"}


@pytest.fixture
def file(tmp_path):
    """A checkpoint with momentum."""
    return examples.save(tmp_path, examples.whole())


ADAM = {"optimizer": "adam", "adam_betas": "(0.9, 0.98)", "lr": [0.0005], "lr_scheduler": "inverse_sqrt"}
ADAM |= {"warmup_updates": 4000, "warmup_init_lr": 1e-7}


@pytest.mark.parametrize(
    ("name", "change", "output"),
    drills_but(
        [
            ("fconv_04_share_embed_nopad", dict, "logits"),
            ("fconv_07_even_kernels", dict, "logits"),
            ("fconv_07_even_kernels", merged_tensors, "logits"),
            ("fconv_09_old_version1_checkpoint", dict, "logits"),
            ("fconv_09_old_version1_checkpoint", without_version, "logits"),
            ("lightconv_01_glu", dict, "logits"),
            ("lightconv_02_prenorm_learnedpos_noglu_widekernel", dict, "logits"),
            ("dynamicconv_01_glu", dict, "logits"),
            ("dynamicconv_02_widekernel", dict, "incremental_logits"),  # those of training are of cut kernels there
        ],
        kept=[
            ("fconv_09_old_version1_checkpoint", without_version, "logits"),
            ("fconv_07_even_kernels", merged_tensors, "logits"),
        ],
    ),
)
def test_an_imported_model_has_fairseqs_logits(name, change, output, tmp_path):
    arrays, args, tensors = examples.case(name)
    light = "fconv" not in name
    args |= {"arch": "lightconv", **ADAM} if light else {}
    told = examples.bring_in(examples.save_arrays(tmp_path, args, change(tensors)), tmp_path / "run")
    assert "momentum starts from zero" in " ".join(told)
    real = arrays["in/target"] != PAD
    found, expected = examples.logits(tmp_path / "run", arrays)[real], arrays[f"out/{output}"][real]
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    training = examples.held(tmp_path / "run")[0].training
    if light:
        assert (training.optimizer.kind, training.optimizer.b2) == ("adam", 0.98)
        assert (training.schedule.kind, training.schedule.warmup) == ("inverse_sqrt", 4000)


@pytest.mark.drill
def test_updates_after_an_import_are_those_of_fairseq(tmp_path):
    """fairseq's first update is undone to find its buffer: b = -lr g = (after - before) / (1 + m)."""
    arrays, info = cases.load("nag_02_lr_change")
    before, after = (
        {k.removeprefix(f"{part}/"): v for k, v in arrays.items() if k.startswith(f"{part}/")}
        for part in ("init", "after1")
    )
    order = [name for name in before if name != "decoder.version"]
    momentum = [(after[name] - before[name]) / np.float32(1.99) for name in order]
    version = {"decoder.version": np.array([2.0], np.float32)}
    args = {**info["config"], **examples.TRAINING, "clip_norm": float(info["clip_norm"])}
    values = examples.content({**version, **{n: after[n] for n in order}}, args, momentum, rate=info["lrs"][0])
    examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    cfg, _, state, _ = examples.held(tmp_path / "run")
    batch = Batch(src=jnp.asarray(arrays["in/src_tokens"]), tgt=jnp.asarray(arrays["in/target"]))
    steps = compile_configured(cfg.model, cfg.training)
    for rate in info["lrs"][1:]:
        state, _ = update(steps, state, [batch], jnp.float32(rate), jax.random.key(0))
    for name, value in fairseq.state_dict(state.params).items():
        expected = arrays[f"final64/{name}"]
        assert np.linalg.norm(value - expected) < 2e-5 * max(np.linalg.norm(expected), 1e-2), name


@pytest.mark.drill
def test_train_continues_an_imported_run(file, tmp_path, capfd):
    workdir = tmp_path / "run"
    for split, lines in (("train", 60), ("valid", 6), ("test", 4)):
        for side in ("de", "en"):
            text = "".join(f"{side}{i % 7} {side}{i % 5} {side}{i % 3}\n" for i in range(lines))
            (tmp_path / f"{split}.{side}").write_text(text)
    examples.bring_in(file, workdir, overrides=[("training.validate_bleu", "False"), ("training.keep", "9")])
    imported = tiny.digests(workdir, examples.UPDATES)
    tensors = examples.case()[2]
    trace = fairseq.state_dict(examples.held(workdir)[2].optimizer.trace)
    for name, buffer in zip(examples.parameters(tensors), examples.buffers(tensors), strict=True):
        np.testing.assert_allclose(trace[name], -buffer / examples.RATE, rtol=1e-6)
    overrides = [("data.dir", str(tmp_path)), ("training.max_steps", str(examples.UPDATES + 3))]
    train(build(Config, read_config(str(workdir / "config.json"), overrides)), workdir)
    told = capfd.readouterr().err
    assert f"continuing at step {examples.UPDATES}, epoch {examples.EPOCH - 1}" in told  # EPOCH has not begun
    assert tiny.digests(workdir, examples.UPDATES + 3)["params"] != imported["params"]
    again = tiny.digests(workdir, examples.UPDATES)
    assert (again["params"], again["optimizer"]) == (imported["params"], imported["optimizer"])
    lines = tiny.metrics(workdir)
    assert next(line["step"] for line in lines if line["split"] == "valid") == examples.UPDATES
    assert next(line["epoch"] for line in lines if line["split"] == "train") == examples.EPOCH
    assert all(np.isfinite(line["loss"]) for line in lines)
    for side in ("en", "de"):
        with (tmp_path / f"train.{side}").open("a") as text:
            text.write(f"{side}1\n")
    with pytest.raises(UserError, match="have changed since its checkpoint"):  # from now on the data are known
        train(build(Config, read_config(str(workdir / "config.json"), overrides)), workdir)


def test_state_dict_and_arguments_need_no_torch(golden, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model = golden / "beam_model"
    told = examples.bring_in(model / "state_dict.npz", tmp_path / "run", source_lang="de", target_lang="en")
    assert "config.json, have no checksum" in told[1]
    assert "momentum starts from zero (it contains no optimiser state)" in told[2]
    tensors = np.load(model / "state_dict.npz")
    for name, value in fairseq.state_dict(examples.held(tmp_path / "run")[2].params).items():
        np.testing.assert_array_equal(value, tensors[name])
    (tmp_path / "x.pt").touch()
    needs = r"fairseq checkpoints require PyTorch, which is not installed; run pip install '\.\[fairseq\]'"
    with pytest.raises(UserError, match=rf"^--checkpoint={tmp_path / 'x.pt'}: {needs}"):
        examples.bring_in(tmp_path / "x.pt", tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "folders", "options"),
    [
        ("beam_b5_lp1.0", ["a"], ["--beam_size=5"]),
        pytest.param("beam_b1_lp1.0", ["a"], ["--beam_size=1"], marks=pytest.mark.drill),
        pytest.param("beam_b5_lp2.0", ["a", "b"], ["--beam_size=5", "--length_penalty=2"], marks=pytest.mark.drill),
    ],
    ids=["one", "greedy", "ensemble"],
)
def test_decode_gives_fairseqs_translations(name, folders, options, golden, tmp_path):
    """One imported model, and an ensemble of it twice."""
    model = golden / "beam_model"
    spm = {"src_spm": model / "spm.de.model", "tgt_spm": model / "spm.en.model"}
    workdirs = [tmp_path / folder for folder in folders]
    given = {"checkpoint": [model / "state_dict.npz"] * len(folders), "dicts": model, **spm}
    examples.bring_in(None, tmp_path, workdir=workdirs, source_lang="de", target_lang="en", **given)
    sentences = json.loads((golden / f"{name}.json").read_text())["sentences"]
    lines = [s["src_text"].replace(" ", "").replace("\u2581", " ").strip() + "\n" for s in sentences]
    options = [*options, "--stop=fairseq", "--max_length_a=0", "--max_length_b=200"]
    arguments = ["decode.py", f"--workdir={','.join(map(str, workdirs))}", *options]
    result = called(decode.console, *arguments, text="".join(lines))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [s["hyps"][0]["text"] for s in sentences]


@pytest.mark.drill
def test_several_checkpoints_make_several_workdirs_or_their_average(tmp_path):
    _, args, tensors = examples.case()
    other = {name: value + np.float32(0.1) for name, value in tensors.items() if name != "decoder.version"}
    other = {"decoder.version": tensors["decoder.version"], **other}
    momentum = examples.buffers(tensors)
    one = examples.save(tmp_path, examples.content(tensors, args, momentum), "one.pt")
    by_epoch = {**args, "update_freq": [9, 8, 7, 6]}  # the checkpoint is of the third
    two = examples.save(tmp_path, examples.content(other, by_epoch, momentum), "two.pt")
    both = {"checkpoint": [one, two], "workdir": [tmp_path / "a", tmp_path / "b"]}
    examples.bring_in(one, tmp_path, **both)
    for workdir, expected in ((tmp_path / "a", tensors), (tmp_path / "b", other)):
        for name, value in fairseq.state_dict(examples.held(workdir)[2].params).items():
            np.testing.assert_array_equal(value, expected[name])
    assert examples.held(tmp_path / "b")[0].data.batch.accumulate == 7

    average = {**both, "workdir": [tmp_path / "c"], "average": True}
    told = examples.bring_in(one, tmp_path, **average)
    assert "the average of 2 checkpoints: momentum starts from zero" in " ".join(told)
    names = [examples.held(tmp_path / run)[3][derived_workdir.IMPORTED] for run in "abc"]
    assert names == [[str(one)], [str(two)], [str(one), str(two)]]
    _, _, state, _ = examples.held(tmp_path / "c")
    found, kernels = fairseq.state_dict(weight_norm.merge(state.params)), [merged_tensors(t) for t in (tensors, other)]
    for name, value in found.items():
        np.testing.assert_allclose(value, (kernels[0][name] + kernels[1][name]) / 2, rtol=1e-5, atol=1e-6)
    assert not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(state.optimizer))

    wide = examples.content(tensors, {**args, "dropout": 0.4})
    average["checkpoint"] = [one, examples.save(tmp_path, wide, "wide.pt")]
    with pytest.raises(UserError, match="the checkpoints belong to different models"):
        examples.bring_in(one, tmp_path, **{**average, "workdir": [tmp_path / "d"]})
    assert not (tmp_path / "d").exists()


def test_a_configuration_file_and_the_command_line_have_the_last_word(file, tmp_path):
    config = tmp_path / "mine.py"
    config.write_text(
        "def get_config():\n    return {'training': {'schedule': {'kind': 'plateau', 'rate': 0.1}, 'keep': 7}}\n"
    )
    overrides = [("model.dropout", "0.33"), ("data.dir", "somewhere")]
    examples.bring_in(file, tmp_path / "run", config=str(config), overrides=overrides)
    cfg = examples.held(tmp_path / "run")[0]
    assert (cfg.training.schedule.kind, cfg.training.schedule.rate, cfg.training.keep) == ("plateau", 0.1, 7)
    assert (cfg.model.dropout, cfg.data.dir, cfg.training.clip) == (0.33, "somewhere", 0.1)


@pytest.mark.drill
@pytest.mark.parametrize("same", [True, False])
def test_a_shared_table_comes_in_as_one(same, tmp_path):
    _, args, tensors = examples.case("dynamicconv_01_glu")
    table = tensors["decoder.embed_tokens.weight"]
    tensors |= {"encoder.embed_tokens.weight": table, "decoder.output_projection.weight": table}
    args |= {"arch": "lightconv", "share_all_embeddings": True, **ADAM}
    file = examples.save_arrays(tmp_path, args, tensors)
    if same:
        (tmp_path / "dict.de.txt").write_bytes((tmp_path / "dict.en.txt").read_bytes())
    told = " ".join(examples.bring_in(file, tmp_path / "run"))
    cfg, vocabularies, state, _ = examples.held(tmp_path / "run")
    assert cfg.model.share_embeddings
    assert state.params.encoder.embedding.table is None
    assert ("the two vocabularies differ" in told) != same
    assert vocabularies.joint == same


# Mistakes: a sentence, and no workdir.


def refused(file, place, sentence, **options):
    there = sorted(path.name for path in place.parent.iterdir())
    with pytest.raises(UserError, match=sentence) as error:
        examples.bring_in(file, place, **options)
    assert sorted(path.name for path in place.parent.iterdir()) == there
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c["args"].update(arch="transformer"), "checkpoint.pt: arch is 'transformer'"),
        (lambda c: c["model"].pop("encoder.fc1.bias"), "checkpoint.pt: .*encoder.fc1.bias is missing"),
        (
            lambda c: c["model"].update({"encoder.fc1.weight_v": np.zeros((24, 16), np.float32)}),
            "checkpoint.pt: encoder.fc1.weight_v has a norm of 0 in channel 0",
        ),
        (
            lambda c: c["last_optimizer_state"]["state"].popitem(),
            r"checkpoint.pt: its momentum buffers .* \(51 buffers for 52 parameters\), as after training in half",
        ),
        (lambda c: c["args"].pop("source_lang"), "does not specify its languages; set --source_lang and --target_lang"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path, change, sentence):
    values = examples.whole()
    change(values)
    refused(examples.save(tmp_path, values), tmp_path / "run", sentence)


def test_momentum_of_half_precision_training_can_be_left_out(tmp_path):
    """fairseq's FP16Optimizer keeps one flat buffer for all parameters."""
    values = examples.whole()
    state = values["last_optimizer_state"]
    state["state"], state["param_groups"][0]["params"] = {0: state["state"][0]}, [0]
    values["model"] = {name: value.astype(np.float16) for name, value in values["model"].items()}
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", r"1 buffers for \d+ parameters\), as after training in half precision")
    assert not any("momentum starts" in told for told in examples.bring_in(file, tmp_path / "run", momentum=False))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(examples.held(tmp_path / "run")[2].params))


def test_dictionaries_and_models_of_pieces_that_do_not_fit(file, tmp_path):
    (tmp_path / "spm").write_text("no model")
    for name, sentence in (("spm", "spm contains no SentencePiece model"), ("no", "cannot be read")):
        refused(file, tmp_path / "run", sentence, src_spm=tmp_path / name, tgt_spm=tmp_path / name)
    examples.write_dictionary(tmp_path, "de", 50)
    entries = r"dict.de.txt has 46 entries and 4 special symbols \(50 in total\), but encoder.embed_tokens.weight"
    refused(file, tmp_path / "run", entries)
    (tmp_path / "dict.en.txt").unlink()
    refused(file, tmp_path / "run", "dict.en.txt is missing; set --dicts to the folder")


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


def test_a_failure_at_the_second_workdir_leaves_none_of_the_first(file, tmp_path, monkeypatch):
    values = examples.whole()
    values["model"].popitem()
    workdirs = [tmp_path / "a", tmp_path / "b"]
    bad = examples.save(tmp_path, values, "bad.pt")
    refused(file, tmp_path / "a", "is missing", checkpoint=[file, bad], workdir=workdirs)
    save, calls = vocabulary.save, []

    def full_at_last(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(vocabulary, "save", full_at_last)
    full = r"--workdir=.*b cannot be written: No space left on device"
    refused(file, tmp_path / "a", full, checkpoint=[file] * 2, workdir=workdirs)


@pytest.mark.parametrize(
    ("count", "workdirs", "average", "sentence"),
    [
        (1, ["a", "b"], False, "--checkpoint lists 1 files and --workdir lists 2; specify one workdir for each"),
        (1, ["a"], True, "--average was given 1 checkpoints and 1 workdirs; it requires at least two"),
        (2, ["a", "a"], False, "a is listed twice"),
        (2, ["b", "b/"], False, "b/ is listed twice"),
        (2, ["gs://bucket/a", "b"], False, "^--workdir lists several workdirs, and not all are local; import one"),
    ],
)
def test_numbers_that_do_not_go_together(tmp_path, count, workdirs, average, sentence):
    given = {"checkpoint": [tmp_path / "x.pt"] * count, "average": average}
    there = [name if ":" in name else f"{tmp_path}/{name}" for name in workdirs]
    refused(tmp_path, tmp_path / "run", sentence, workdir=there, **given)


# Object stores.

FOLDER = "gs://bucket/fairseq"


@pytest.fixture
def uploaded(tmp_path, bucket):  # noqa: F811
    """A folder of fairseq's files that is also in a store: a checkpoint in both formats, dictionaries, and codes."""
    folder = tmp_path / "fairseq"
    folder.mkdir()
    values = examples.whole()
    examples.save(folder, values)
    examples.save_arrays(folder, values["args"], values["model"])
    for language in ("de", "en"):
        path = folder / f"dict.{language}.txt"
        size = len(path.read_text().splitlines())
        path.write_text("".join(f"{word} 1\n" for word in ["ab@@", *(chr(0x4E00 + i) for i in range(size - 1))]))
    (folder / "codes").write_text("a b\n")
    for path in folder.iterdir():
        stores.write(f"{FOLDER}/{path.name}", path.read_bytes())
    return folder


@pytest.mark.parametrize("name", drills_but(["checkpoint.pt", "state_dict.npz"], kept=["checkpoint.pt"]))
def test_an_import_from_a_store_is_that_of_local_files(name, uploaded, temporary, tmp_path):  # noqa: F811
    here, there = tmp_path / "here", tmp_path / "there"
    told = examples.bring_in(uploaded / name, here, bpe_codes=[uploaded / "codes"])
    given = {"checkpoint": [f"{FOLDER}/{name}"], "dicts": f"{FOLDER}/", "bpe_codes": [f"{FOLDER}/codes"]}
    found = examples.bring_in(None, there, **given)
    assert found == [line.replace(str(here), str(there)).replace(str(uploaded), FOLDER) for line in told]
    assert any(f"{FOLDER}: dict.de.txt and dict.en.txt have no checksums" in line for line in found)
    [step] = run_folder.finished(run_folder.checkpoints(here))
    own, other = (tiny.digests(run, step) for run in (here, there))
    assert (own["params"], own["optimizer"]) == (other["params"], other["optimizer"])
    mine, theirs = (vocabulary.load(run_folder.vocabulary(run)) for run in (here, there))
    assert run_folder.fingerprints(mine) == run_folder.fingerprints(theirs)
    assert examples.held(there)[3][derived_workdir.IMPORTED] == [f"{FOLDER}/{name}"]
    assert not any(temporary.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("checkpoint.pt", None, "--checkpoint=FOLDER/checkpoint.pt: there is no such object"),
        ("checkpoint.pt", b"bad", "--checkpoint=FOLDER/checkpoint.pt is not a checkpoint that torch can read: it is d"),
        ("dict.en.txt", None, "FOLDER/dict.en.txt is missing; set --dicts to the folder with dict.de.txt and dict.en"),
        ("codes", b"a\n", "FOLDER/codes, line 1: 'a' is not a pair of symbols"),
    ],
)
def test_messages_state_addresses_and_no_copy_is_left(name, content, sentence, uploaded, temporary, tmp_path):  # noqa: F811
    stores.delete(f"{FOLDER}/{name}") if content is None else stores.write(f"{FOLDER}/{name}", content)
    codes = [f"{FOLDER}/codes"] if name == "codes" else []
    given = {"checkpoint": [f"{FOLDER}/checkpoint.pt"], "dicts": FOLDER, "bpe_codes": codes}
    told = refused(None, tmp_path / "run", ".", **given)
    assert told.startswith(sentence.replace("FOLDER", FOLDER))
    assert str(temporary) not in told
    assert not any(temporary.iterdir())


def test_an_import_to_a_store_is_that_of_a_local_workdir(file, tmp_path, bucket):  # noqa: F811
    examples.bring_in(file, tmp_path / "run")
    bucket.mkdir()
    told = examples.bring_in(file, tmp_path, workdir=["gs://bucket/run/"])
    assert "translate with convs2s decode --workdir=gs://bucket/run/" in told[-1]
    [step] = run_folder.finished(run_folder.checkpoints(tmp_path / "run"))
    assert tiny.digests(bucket / "run", step) == tiny.digests(tmp_path / "run", step)
    assert (bucket / "run" / "config.json").read_bytes() == (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match=r"^--workdir=gs://bucket/run already exists: choose a new folder"):
        examples.bring_in(file, tmp_path, workdir=["gs://bucket/run"])
