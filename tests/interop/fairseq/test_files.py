"""Files of unknown origin: nothing in them is executed, and what is wrong is said in a sentence."""

import argparse
import os
import pickle
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint, files
from tests.helpers import drills_but
from tests.interop.fairseq import examples


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def good():
    return examples.whole()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "pickle"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "posix.system"), (eval, "builtins.eval"), (subprocess.check_output, "commands.check_output")],
    ids=["system", "eval", "subprocess"],
)
@pytest.mark.parametrize("place", ["args", "model", "extra_state"])
def test_code_in_a_checkpoint_is_refused_and_never_runs(torch, good, tmp_path, legacy, function, name, place):
    made = tmp_path / "made"
    command = f"open({str(made)!r}, 'w')" if function is eval else f"touch {made}"
    call = Call(function, [command], None) if function is subprocess.check_output else Call(function, command)
    path = tmp_path / "bad.pt"
    torch.save({**good, place: call}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(
        UserError, match=rf"bad.pt refers to {name}.* and was refused; nothing in it was executed"
    ) as error:
        checkpoint.load(path)
    assert "\n" not in str(error.value)
    assert not made.exists()


def test_a_plain_pickle_runs_nothing(torch, tmp_path):
    path, made = tmp_path / "bad.pt", tmp_path / "made"
    path.write_bytes(pickle.dumps(Call(os.system, f"touch {made}"), protocol=2))
    with pytest.raises(UserError, match=r"bad.pt"):
        checkpoint.load(path)
    assert not made.exists()


def test_an_accepted_name_is_never_the_thing_itself(torch, good, tmp_path, monkeypatch):
    """A class of a name on the list is not imported, even where it exists."""
    module = types.ModuleType("fairseq.meters")

    class AverageMeter:
        def __setstate__(self, state):
            raise AssertionError("code of fairseq ran")

    AverageMeter.__module__, AverageMeter.__qualname__ = "fairseq.meters", "AverageMeter"
    module.AverageMeter = AverageMeter
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    meter = AverageMeter()
    meter.sum = 3.0
    good["extra_state"] = {**good["extra_state"], "train_meters": {"loss": meter}, "val_loss": np.float64(3.5)}
    found = checkpoint.load(examples.save(tmp_path, good))
    assert (found.updates, found.epoch) == (examples.UPDATES, examples.EPOCH)


@pytest.mark.parametrize(
    "name",
    [
        "fairseq.dataclass.configs.CommonConfig",
        "fairseq.optim.adam.FairseqAdamConfig",
        "fairseq.optim.lr_scheduler.cosine_lr_scheduler.CosineLRScheduleConfig",
        "fairseq.optim.lr_scheduler.inverse_square_root_schedule.InverseSquareRootLRScheduleConfig",
    ],
)
def test_configurations_of_fairseq_are_read(torch, good, tmp_path, monkeypatch, name):
    module, _, cls = name.rpartition(".")
    parts = module.split(".")
    for i in range(len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[: i + 1]), types.ModuleType(".".join(parts[: i + 1])))
    record = type(cls, (), {"__module__": module})
    setattr(sys.modules[module], cls, record)
    path = examples.save(tmp_path, good | {"extra_state": {**good["extra_state"], "more": record()}})
    assert checkpoint.load(path).updates == examples.UPDATES


def test_omegaconf_is_read_without_it(torch, good, tmp_path, monkeypatch):
    omegaconf = pytest.importorskip("omegaconf")
    expected, given = checkpoint.load(examples.save(tmp_path, good)).args, vars(good["args"])
    sections = {"lr_scheduler": {"_name": "fixed"}, "optimizer": {"_name": "nag"}, "task": {"source_lang": "de"}}
    model = {name: value for name, value in given.items() if name not in ("lr_scheduler", "optimizer", "arch")}
    cfg = omegaconf.OmegaConf.create({**sections, "model": {"_name": "fconv", **model}})
    good |= {"args": None, "cfg": cfg}
    path = examples.save(tmp_path, good)
    for name in [name for name in sys.modules if name.split(".")[0] == "omegaconf"]:
        monkeypatch.setitem(sys.modules, name, None)
    found = checkpoint.load(path).args
    assert {name: found[name] for name in expected} == expected


def namespace(model):
    return argparse.Namespace(**model)


@pytest.mark.parametrize("form", drills_but([dict, namespace], kept=[dict]), ids=["dictionary", "Namespace"])
def test_the_later_form_of_arguments_says_the_same(torch, good, tmp_path, form):
    args = vars(good["args"])
    model = {name: args.pop(name) for name in list(args) if "coder_" in name or "positions" in name}
    model |= {"dropout": args.pop("dropout"), "share_input_output_embed": args.pop("share_input_output_embed")}
    optimizer = {"_name": args.pop("optimizer"), "momentum": args.pop("momentum")}
    scheduler = {"_name": args.pop("lr_scheduler"), "force_anneal": None, "lr_shrink": args.pop("lr_shrink")}
    cfg = {"model": form({"_name": args.pop("arch"), **model}), "optimizer": optimizer, "lr_scheduler": scheduler}
    cfg |= {"task": {"source_lang": args.pop("source_lang"), "target_lang": args.pop("target_lang")}}
    path = examples.save(tmp_path, {**good, "args": None, "cfg": cfg})
    examples.bring_in(path, tmp_path / "later")
    _, args, tensors = examples.case()
    narrow = {"clip_norm", "criterion", "max_tokens", "update_freq", "seed", "lr"}
    older = {name: value for name, value in args.items() if name not in narrow}
    momentum = examples.buffers(tensors)
    examples.bring_in(examples.save(tmp_path, examples.content(tensors, older, momentum)), tmp_path / "older")
    assert (tmp_path / "later" / "config.json").read_text() == (tmp_path / "older" / "config.json").read_text()


def test_half_precision_becomes_single(torch, good, tmp_path):
    good["model"] = {name: value.half() for name, value in good["model"].items()}
    found = checkpoint.load(examples.save(tmp_path, good)).tensors
    assert {value.dtype for value in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: path.rename(path.with_name("x")) and path.mkdir(), "is not a file; specify a .pt or .npz file"),
        (lambda path: path.write_bytes(b""), "is not a checkpoint that torch can read"),
        (lambda path: path.write_text("hello\n" * 100), "is not a checkpoint that torch can read"),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is not a checkpoint that torch can read"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "is not a checkpoint that torch can read"),
    ],
    ids=["missing", "folder", "empty", "text", "cut", "zip"],
)
def test_what_is_no_checkpoint_is_named(torch, good, tmp_path, spoil, sentence):
    path = examples.save(tmp_path, good)
    spoil(path)
    with pytest.raises(UserError, match=rf"--checkpoint=.*checkpoint.pt.*{sentence}") as refused:
        checkpoint.load(path)
    assert "weights_only" not in str(refused.value), "torch's advice would execute the file"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: {"state": c["model"], "lr": 3}, r"contains no 'model'.* \(it contains: state, lr\)"),
        (lambda _: [1, 2], r"contains no 'model'.* \(it contains: list\)"),
        (lambda c: c | {"args": None}, "contains neither 'args' nor 'cfg' with a 'model'"),
        (lambda c: c | {"model": c["model"] | {"x": "text"}}, r"model\['x'\] is not a tensor of numbers"),
        (
            lambda c: c | {"last_optimizer_state": {"state": {0: 1}}},
            "is not laid out like a fairseq checkpoint: KeyError",
        ),
    ],
)
def test_odd_contents_are_named(torch, good, tmp_path, change, sentence):
    torch.save(change(good), tmp_path / "odd.pt")
    with pytest.raises(UserError, match=sentence):
        checkpoint.load(tmp_path / "odd.pt")


def test_arrays_need_their_arguments_and_hold_no_objects(tmp_path):
    np.savez(tmp_path / "state_dict.npz", a=np.zeros(2))
    with pytest.raises(
        UserError, match=r"config.json is missing; it must contain fairseq's arguments for state_dict.npz"
    ):
        files.read(tmp_path / "state_dict.npz")
    for text, sentence in (("[1", "is not JSON"), ("[[1, 2]]", "is not a JSON object"), ("1", "is not a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=rf"config.json {sentence}.* it must contain fairseq's arguments"):
            files.read(tmp_path / "state_dict.npz")
    (tmp_path / "config.json").write_text("{}")
    assert files.read(tmp_path / "state_dict.npz")["args"] == {}
    made = tmp_path / "made"
    np.savez(tmp_path / "objects.npz", a=np.array([Call(os.system, f"touch {made}")], dtype=object))
    (tmp_path / "broken.npz").write_text("no archive")
    for name in ("objects", "broken"):
        with pytest.raises(UserError, match=rf"{name}.npz is not an .npz file of plain arrays"):
            files.read(tmp_path / f"{name}.npz")
    assert not made.exists()


@pytest.mark.parametrize(
    ("iterator", "epoch"),
    [
        ({"version": 2, "epoch": 8, "iterations_in_epoch": 0}, 8),
        ({"version": 2, "epoch": 8, "iterations_in_epoch": 5}, 8),
        ({"epoch": 7, "iterations_in_epoch": 500}, 8),
        ({"version": 1, "epoch": 7, "iterations_in_epoch": 0}, 7),
        ({"version": 2, "epoch": 0, "iterations_in_epoch": 0}, 1),
    ],
)
def test_the_epoch_to_go_on_with(torch, good, tmp_path, iterator, epoch):
    good["extra_state"] = {"train_iterator": iterator}
    assert checkpoint.load(examples.save(tmp_path, good)).epoch == epoch
