"""Checkpoints of fairseq to workdirs: fairseq's numbers, translations and next updates; on a mistake, no workdir."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.training.run.programs import ProgramKey, compile_run
from convs2s_jax.training.step import Batch, update
from tests import golden as cases
from tests.helpers import difference, drills_but
from tests.interop.fairseq import examples
from tests.processes import called
from tests.stores import bucket  # noqa: F401  (a fixture)


def without_version(tensors):
    return {name: value for name, value in tensors.items() if name != "decoder.version"}


@pytest.fixture
def file(tmp_path):
    """A checkpoint with momentum."""
    return examples.save(tmp_path, examples.whole())


ADAM = {"optimizer": "adam", "adam_betas": "(0.9, 0.98)", "lr": [0.0005], "lr_scheduler": "inverse_sqrt"}
ADAM |= {"warmup_updates": 4000, "warmup_init_lr": 1e-7, "arch": "lightconv"}
OLD = ("fconv_09_old_version1_checkpoint", without_version, "logits")


@pytest.mark.parametrize(
    ("name", "change", "output"),
    drills_but(
        [
            ("fconv_04_share_embed_nopad", dict, "logits"),
            ("fconv_09_old_version1_checkpoint", dict, "logits"),
            OLD,
            ("lightconv_01_glu", dict, "logits"),
            ("lightconv_02_prenorm_learnedpos_noglu_widekernel", dict, "logits"),
            ("dynamicconv_01_glu", dict, "logits"),
            ("dynamicconv_02_widekernel", dict, "incremental_logits"),  # those of training are of cut kernels there
        ],
        kept=[OLD],
    ),
)
def test_an_imported_model_has_fairseqs_logits(name, change, output, tmp_path):
    arrays, args, tensors = examples.case(name)
    light = "fconv" not in name
    momentum = examples.buffers(tensors) if name == OLD[0] else None
    values = examples.content(change(tensors), args | (ADAM if light else {}), momentum)
    told = examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    assert "momentum starts from zero" in " ".join(told)
    real = arrays["in/target"] != PAD
    assert difference(examples.logits(tmp_path / "run", arrays)[real], arrays[f"out/{output}"][real]) < 1e-5
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
    steps = compile_run(ProgramKey(cfg.model, cfg.training))
    for rate in info["lrs"][1:]:
        state, _ = update(steps, state, [batch], jnp.float32(rate), jax.random.key(0))
    for name, value in fairseq.state_dict(state.params).items():
        expected = arrays[f"final64/{name}"]
        assert np.linalg.norm(value - expected) < 2e-5 * max(np.linalg.norm(expected), 1e-2), name


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
    pytest.importorskip("torch")
    model = golden / "beam_model"
    spm = {f"{side}_spm": str(model / f"spm.{language}.model") for side, language in (("src", "de"), ("tgt", "en"))}
    workdirs = [tmp_path / folder for folder in folders]
    for workdir in workdirs:
        examples.bring_in(model / "checkpoint_best.pt", workdir, **spm)
    sentences = json.loads((golden / f"{name}.json").read_text())["sentences"]
    lines = [s["src_text"].replace(" ", "").replace("\u2581", " ").strip() + "\n" for s in sentences]
    options = [*options, "--stop=fairseq", "--max_length_a=0", "--max_length_b=200"]
    arguments = ["decode.py", f"--workdir={','.join(map(str, workdirs))}", *options]
    result = called(COMMANDS["decode"].run, *arguments, text="".join(lines))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [s["hyps"][0]["text"] for s in sentences]


def test_half_precision_and_overrides(tmp_path):
    """fairseq's FP16Optimizer keeps one flat buffer for all parameters."""
    values = examples.whole()
    state = values["last_optimizer_state"]
    state["state"], state["param_groups"][0]["params"] = {0: state["state"][0]}, [0]
    values["model"] = {name: value.astype(np.float16) for name, value in values["model"].items()}
    file = examples.save(tmp_path, values)
    refused(file, tmp_path / "run", r"its 1 momentum buffers do not match its \d+ parameters, as after training")
    overrides = [("model.dropout", "0.33"), ("training.schedule", "{'kind': 'plateau', 'rate': 0.1}")]
    told = examples.bring_in(file, tmp_path / "run", momentum=False, overrides=overrides)
    assert not any("momentum starts" in one for one in told)
    cfg, _, state, _ = examples.held(tmp_path / "run")
    assert (cfg.training.schedule.kind, cfg.model.dropout, cfg.training.clip) == ("plateau", 0.33, 0.1)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))


# Mistakes: a sentence, and no workdir.


def refused(file, place, sentence, **options):
    there = sorted(path.name for path in place.parent.iterdir())
    with pytest.raises(UserError, match=sentence):
        examples.bring_in(file, place, **options)
    assert sorted(path.name for path in place.parent.iterdir()) == there


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c["args"].update(arch="transformer"), "checkpoint.pt: arch is 'transformer'; only fairseq's fconv"),
        (lambda c: c["args"].update(arch="fconv_lm_dauphin_gbw"), "arch is 'fconv_lm_dauphin_gbw'; only fairseq's"),
        (lambda c: c["args"].pop("source_lang"), "--source_lang is missing: the checkpoint does not specify its"),
        (lambda c: c["args"].update(source_lang="../x"), "--source_lang=../x: a language is part of a file name"),
        (lambda c: c["args"].update(source_lang="en"), "both sides are named 'en': their dictionaries would have the"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path, change, sentence):
    values = examples.whole()
    change(values)
    refused(examples.save(tmp_path, values), tmp_path / "run", sentence)


def test_files_that_do_not_fit(file, tmp_path, monkeypatch):
    (tmp_path / "spm").write_text("no model")
    for name, sentence in (("spm", "spm contains no SentencePiece model"), ("no", "cannot be read")):
        refused(file, tmp_path / "run", sentence, src_spm=str(tmp_path / name), tgt_spm=str(tmp_path / name))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    refused(file, tmp_path / "taken", "taken already exists: choose a new folder; nothing was written")
    examples.write_dictionary(tmp_path, "de", 50)
    entries = r"the source dictionary has 46 entries and 4 special symbols \(50 in total\), but the model's table has"
    refused(file, tmp_path / "run", entries)
    (tmp_path / "dict.en.txt").unlink()
    refused(file, tmp_path / "run", "dict.en.txt is missing; set --dicts to the folder")
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(file, tmp_path / "run", r"^reading fairseq checkpoints needs torch: pip install '\.\[fairseq\]'$")
