"""Checkpoints of fairseq to workdirs and back: same numbers, same next updates, nothing lost on a round trip."""

import dataclasses
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.commands import decode
from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build, literal
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import files
from convs2s_jax.models import encoder_decoder
from convs2s_jax.nn import weight_norm
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir, position_file, restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import compile_configured
from convs2s_jax.training.step import update
from tests import golden as cases
from tests import tiny
from tests.helpers import array, drills_but
from tests.interop.fairseq import examples
from tests.processes import called
from tests.stores import bucket  # noqa: F401  (a fixture)


def merged_tensors(tensors):
    """A state dict after fairseq's removal of weight norm, by loops over norms."""
    result = {name: value for name, value in tensors.items() if "weight_" not in name}
    for name, v in tensors.items():
        if name.endswith("weight_v"):
            g = tensors[name.removesuffix("v") + "g"]
            axes = tuple(axis for axis, size in enumerate(g.shape) if size == 1)
            result[name.removesuffix("_v")] = v * g / np.sqrt(np.sum(v.astype(np.float64) ** 2, axes, keepdims=True))
    return {name: value.astype(np.float32) for name, value in result.items()}


@pytest.fixture
def file(tmp_path):
    """A checkpoint with momentum."""
    return examples.save(tmp_path, examples.whole())


def unchanged(tensors):
    return tensors


def without_version(tensors):
    return {name: value for name, value in tensors.items() if name != "decoder.version"}


@pytest.mark.parametrize(
    ("name", "change"),
    drills_but(
        [
            ("fconv_04_share_embed_nopad", unchanged),
            ("fconv_07_even_kernels", unchanged),
            ("fconv_07_even_kernels", merged_tensors),
            ("fconv_09_old_version1_checkpoint", unchanged),
            ("fconv_09_old_version1_checkpoint", without_version),
        ],
        kept=[("fconv_07_even_kernels", unchanged)],
    ),
    ids=["tied", "plain", "weight norm removed", "version 1", "no version"],
)
def test_an_imported_model_has_fairseqs_logits(name, change, tmp_path):
    arrays, args, tensors = examples.case(name)
    told = examples.bring_in(examples.save(tmp_path, examples.content(change(tensors), args)), tmp_path / "run")
    assert "momentum starts from zero" in " ".join(told)
    found, expected = examples.logits(tmp_path / "run", arrays), arrays["out/logits"]
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    "name", drills_but(["fconv_04_share_embed_nopad", "fconv_07_even_kernels"], kept=["fconv_07_even_kernels"])
)
def test_import_export_import_is_exact(name, tmp_path):
    torch = pytest.importorskip("torch")
    _, args, tensors = examples.case(name)
    file = examples.save(tmp_path, examples.content(tensors, args, examples.buffers(tensors)))
    examples.bring_in(file, tmp_path / "one")
    examples.take_out(tmp_path / "one", tmp_path / "out" / "again.pt")
    examples.bring_in(tmp_path / "out" / "again.pt", tmp_path / "two")
    found = [tiny.digests(tmp_path / run, examples.UPDATES) for run in ("one", "two")]
    assert all(found[0][part] == found[1][part] for part in ("params", "optimizer"))
    (_, _, _, one), (_, _, _, two) = (examples.held(tmp_path / run) for run in ("one", "two"))
    names = one.pop(derived_workdir.IMPORTED), two.pop(derived_workdir.IMPORTED)
    assert names == ([str(file)], [str(tmp_path / "out" / "again.pt")])
    assert one | {"digests": {}} == two | {"digests": {}}
    assert (tmp_path / "one" / "config.json").read_text() == (tmp_path / "two" / "config.json").read_text()
    for language in ("de", "en"):
        same = f"dict.{language}.txt"
        assert (tmp_path / same).read_bytes() == (tmp_path / "out" / same).read_bytes()
    with torch.serialization.safe_globals([type(examples.content(tensors, args)["args"])]):
        again = torch.load(tmp_path / "out" / "again.pt", weights_only=True)
    assert list(again["model"]) == list(tensors)  # in fairseq's order
    for name, value in tensors.items():
        assert again["model"][name].dtype == torch.float32
        np.testing.assert_array_equal(again["model"][name].numpy(), value)


@pytest.mark.parametrize(
    ("smoothing", "best"),
    drills_but([(0.0, 3.25), (0.0, None), (0.0, -math.inf), (0.1, 3.25)], kept=[(0.0, 3.25), (0.1, 3.25)]),
)
def test_the_best_loss_of_a_plateau_comes_and_goes_where_it_is_the_same_loss(tmp_path, smoothing, best):
    """In bits there and in nats here. An infinite one is a new scheduler's; with None, fairseq's could not compare."""
    _, args, tensors = examples.case("fconv_07_even_kernels")
    criterion = {"criterion": "label_smoothed_cross_entropy", "label_smoothing": smoothing} if smoothing else {}
    args = {**args, "lr_scheduler": "reduce_lr_on_plateau", "lr": [0.5], **criterion}
    content = examples.content(tensors, args, examples.buffers(tensors))
    content["optimizer_history"][-1]["lr_scheduler_state"]["best"] = best
    told = examples.bring_in(examples.save(tmp_path, content), tmp_path / "run")
    kept = 3.25 if best == 3.25 and not smoothing else math.inf
    assert any("followed the validation loss, smoothed or per sentence" in sentence for sentence in told) == bool(
        smoothing
    )
    [place] = run_folder.finished(run_folder.checkpoints(tmp_path / "run")).values()
    assert position_file.read(place)["schedule"]["best"] == pytest.approx(kept * math.log(2))
    examples.take_out(tmp_path / "run", tmp_path / "out" / "again.pt")
    written = files.read(tmp_path / "out" / "again.pt")["optimizer_history"][-1]["lr_scheduler_state"]["best"]
    assert written == pytest.approx(kept)


@pytest.mark.drill
def test_an_export_has_the_keys_of_fairseqs_own_checkpoint(golden, tmp_path):
    torch = pytest.importorskip("torch")
    own = golden / "beam_model" / "checkpoint_best.pt"
    examples.bring_in(own, tmp_path / "run")
    examples.take_out(tmp_path / "run", tmp_path / "out.pt")
    with torch.serialization.safe_globals([type(examples.argparse.Namespace())]):
        theirs, ours = (torch.load(path, weights_only=True) for path in (own, tmp_path / "out.pt"))
    assert set(ours) == set(theirs)
    assert list(ours["model"]) == list(theirs["model"])
    assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
    last = theirs["optimizer_history"][-1]
    assert set(ours["optimizer_history"][-1]) == set(last)
    for field in ("criterion_name", "optimizer_name", "num_updates"):
        assert ours["optimizer_history"][-1][field] == last[field]
    assert ours["extra_state"]["train_iterator"] == theirs["extra_state"]["train_iterator"]
    groups = [content["last_optimizer_state"]["param_groups"][0] for content in (ours, theirs)]
    assert set(groups[0]) == set(groups[1])
    for field in ("lr", "momentum", "weight_decay", "params"):
        assert groups[0][field] == groups[1][field]
    for i, buffer in theirs["last_optimizer_state"]["state"].items():
        # a buffer carries -lr_old: what counts is their quotient
        mine = ours["last_optimizer_state"]["state"][i]["momentum_buffer"] / groups[0]["lr_old"]
        torch.testing.assert_close(mine, buffer["momentum_buffer"] / groups[1]["lr_old"], rtol=1e-6, atol=0.0)
    model = vars(theirs["cfg"]["model"])
    for name, value in vars(ours["args"]).items():
        if name in ("encoder_layers", "decoder_layers"):
            assert literal(value) == literal(model[name])
        elif name not in ("data", "max_epoch"):
            assert value == model[name], name


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
    start = examples.held(workdir)[2]
    torch_content = examples.content(*examples.case()[2:0:-1], examples.buffers(examples.case()[2]))
    buffers = torch_content["last_optimizer_state"]["state"]
    names = [name for name in torch_content["model"] if name != "decoder.version"]
    trace = fairseq.state_dict(start.optimizer.trace)
    for i, name in enumerate(names):
        np.testing.assert_array_equal(fairseq.state_dict(start.params)[name], torch_content["model"][name].numpy())
        np.testing.assert_allclose(trace[name], -buffers[i]["momentum_buffer"].numpy() / examples.RATE, rtol=1e-6)

    overrides = [("data.dir", str(tmp_path)), ("training.max_steps", str(examples.UPDATES + 3))]
    train(build(Config, read_config(str(workdir / "config.json"), overrides)), workdir)
    told = capfd.readouterr().err
    assert f"continuing at step {examples.UPDATES}, epoch {examples.EPOCH - 1}" in told  # EPOCH has not begun
    last = examples.UPDATES + 3
    assert tiny.digests(workdir, last)["params"] != imported["params"]
    again = tiny.digests(workdir, examples.UPDATES)  # validated at its start: written again with its loss
    assert (again["params"], again["optimizer"]) == (imported["params"], imported["optimizer"])
    lines = tiny.metrics(workdir)
    assert next(line["step"] for line in lines if line["split"] == "valid") == examples.UPDATES
    assert next(line["epoch"] for line in lines if line["split"] == "train") == examples.EPOCH
    assert all(np.isfinite(line["loss"]) for line in lines)

    with (tmp_path / "train.en").open("a") as text:
        text.write("en1\n")
    with (tmp_path / "train.de").open("a") as text:
        text.write("de1\n")
    with pytest.raises(UserError, match="have changed since its checkpoint"):  # from now on the data are known
        train(build(Config, read_config(str(workdir / "config.json"), overrides)), workdir)


def test_state_dict_and_arguments_need_no_torch(golden, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model = golden / "beam_model"
    languages = ("de", "en")
    told = examples.bring_in(model / "state_dict.npz", tmp_path / "run", languages=languages)
    assert "config.json, have no checksum" in told[1]
    assert "momentum starts from zero (it contains no optimiser state)" in told[2]
    state = examples.held(tmp_path / "run")[2]
    tensors = np.load(model / "state_dict.npz")
    for name, value in fairseq.state_dict(state.params).items():
        np.testing.assert_array_equal(value, tensors[name])


def test_without_torch_the_flag_that_needs_it_is_named_before_the_work(file, tmp_path, monkeypatch):
    examples.bring_in(file, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(restoring, "restore_items", lambda *_, **__: pytest.fail("it was restored first"))
    needs = r"fairseq checkpoints require PyTorch, which is not installed; run pip install '\.\[fairseq\]'"
    with pytest.raises(UserError, match=rf"^--checkpoint={file}: {needs}"):
        examples.bring_in(file, tmp_path / "other")
    with pytest.raises(UserError, match=rf"^--output={tmp_path}/out/again.pt: {needs}"):
        examples.take_out(tmp_path / "run", tmp_path / "out" / "again.pt")
    assert not [*tmp_path.glob("other"), *tmp_path.glob("out/*")]
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.drill
@pytest.mark.parametrize("plain", [False, True], ids=["pieces", "plain text"])
def test_greedy_translations_are_those_of_fairseq(plain, golden, tmp_path):
    pytest.importorskip("torch")
    model = golden / "beam_model"
    spm = (model / "spm.de.model", model / "spm.en.model") if plain else (None, None)
    examples.bring_in(model / "checkpoint_best.pt", tmp_path / "run", models=spm)
    cfg, vocabularies, state, position = examples.held(tmp_path / "run")
    assert (position["step"], position["epoch"], position["schedule"]["rate"]) == (2366, 8, pytest.approx(0.0025))
    expected = json.loads((golden / "beam_b1_lp1.0.json").read_text())["sentences"]
    rows = np.load(golden / "beam_b1_lp1.0.npz")["in/src_tokens"]
    texts = [sentence["src_text"] for sentence in expected]
    texts = [text.replace(" ", "").replace("\u2581", " ").strip() for text in texts] if plain else texts
    sources = vocabularies.src.encode(texts)
    assert sources == [[i for i in row if i not in (PAD, EOS)] for row in rows.tolist()]
    longest = max(len(sentence["hyps"][0]["tokens"]) for sentence in expected)
    found = greedy(weight_norm.merge(state.params), cfg.model, jnp.asarray(rows), longest)
    for ids, sentence in zip(found.tolist(), expected, strict=True):
        tokens = sentence["hyps"][0]["tokens"]
        assert ids[: len(tokens)] == tokens
        text = sentence["hyps"][0]["text"]
        assert vocabularies.tgt.decode(tokens).replace(" ", "").replace("\u2581", " ").strip() == (
            text.replace(" ", "") if plain else text
        )
        assert not plain or vocabularies.tgt.decode(tokens) == text


def greedy(params, cfg, src, steps):
    """The likeliest token at each step."""
    memory = encoder_decoder.encode(params, cfg, src)
    last = jnp.full(len(src), EOS, jnp.int32)

    def step(carry, _):
        cache, last = carry
        scores, _, cache = encoder_decoder.decode(params, cfg, memory, cache, last[:, None])
        last = jnp.argmax(scores[:, 0].at[:, PAD].set(-jnp.inf), axis=-1).astype(jnp.int32)
        return (cache, last), last

    cache = encoder_decoder.init_cache(params, cfg, memory, len(src))
    return jax.lax.scan(step, (cache, last), None, length=steps)[1].T


@pytest.mark.parametrize(
    ("name", "folders", "options"),
    [
        ("beam_b5_lp1.0", ["a"], []),
        pytest.param("beam_b5_lp2.0", ["a", "b"], ["--length_penalty=2"], marks=pytest.mark.drill),
    ],
    ids=["one", "ensemble"],
)
def test_decode_gives_fairseqs_translations(name, folders, options, golden, tmp_path):
    """One imported model, and an ensemble of it twice."""
    model = golden / "beam_model"
    spm = (model / "spm.de.model", model / "spm.en.model")
    workdirs = [tmp_path / folder for folder in folders]
    file = model / "state_dict.npz"
    options = [*options, "--beam_size=5", "--stop=fairseq", "--max_length_a=0", "--max_length_b=200"]
    examples.bring_in(
        file,
        tmp_path,
        checkpoints=[file] * len(folders),
        workdirs=workdirs,
        dicts=model,
        models=spm,
        languages=("de", "en"),
    )
    sentences = json.loads((golden / f"{name}.json").read_text())["sentences"]
    lines = [s["src_text"].replace(" ", "").replace("\u2581", " ").strip() + "\n" for s in sentences]
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
    both = {"checkpoints": [one, two], "workdirs": [tmp_path / "a", tmp_path / "b"]}
    examples.bring_in(one, tmp_path, **both)
    for workdir, expected in ((tmp_path / "a", tensors), (tmp_path / "b", other)):
        for name, value in fairseq.state_dict(examples.held(workdir)[2].params).items():
            np.testing.assert_array_equal(value, expected[name])
    assert examples.held(tmp_path / "b")[0].data.batch.accumulate == 7

    average = {**both, "workdirs": [tmp_path / "c"], "average": True}
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
    average["checkpoints"] = [one, examples.save(tmp_path, wide, "wide.pt")]
    with pytest.raises(UserError, match="the checkpoints belong to different models"):
        examples.bring_in(one, tmp_path, **{**average, "workdirs": [tmp_path / "d"]})
    assert not (tmp_path / "d").exists()


def test_an_import_to_a_store_is_that_of_a_local_workdir(file, tmp_path, bucket):  # noqa: F811
    examples.bring_in(file, tmp_path / "run")
    bucket.mkdir()
    told = examples.bring_in(file, tmp_path, workdirs=["gs://bucket/run/"])
    assert "translate with convs2s decode --workdir=gs://bucket/run/" in told[-1]
    [step] = run_folder.finished(run_folder.checkpoints(tmp_path / "run"))
    assert tiny.digests(bucket / "run", step) == tiny.digests(tmp_path / "run", step)
    assert (bucket / "run" / "config.json").read_bytes() == (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(UserError, match=r"^--workdir=gs://bucket/run already exists: choose a new folder"):
        examples.bring_in(file, tmp_path, workdirs=["gs://bucket/run"])
    with pytest.raises(UserError, match=r"^--workdir lists several workdirs, and not all are local; import one"):
        examples.bring_in(file, tmp_path, checkpoints=[file] * 2, workdirs=["gs://bucket/a", tmp_path / "b"])
    with pytest.raises(UserError, match=r"/b/ is listed twice; "):
        examples.bring_in(file, tmp_path, checkpoints=[file] * 2, workdirs=[tmp_path / "b", f"{tmp_path}/b/"])


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
def test_a_half_used_epoch_is_said_to_begin_anew(file, tmp_path):
    from convs2s_jax.training.run.checkpoints import checkpoint

    examples.bring_in(file, tmp_path / "run")
    _, _, state, position = examples.held(tmp_path / "run")
    record = {k: v for k, v in position.items() if k not in ("digests", "format")} | {"batch": 2}
    state = dataclasses.replace(state, step=array(examples.UPDATES + 1, jnp.int32))
    with checkpoint.manager(run_folder.checkpoints(tmp_path / "run"), keep=2) as checkpoints:
        checkpoint.save(checkpoints, state, record)
    told = examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt", step=examples.UPDATES + 1, momentum=False)
    assert "fairseq-train starts epoch 3 over" in " ".join(told)
    assert "there is no optimiser state" in " ".join(told)
