"""Files of unknown origin: nothing in them is executed, and what is large, damaged or odd is refused in a sentence."""

import os
import pickle
import random
import subprocess
import sys
import time
import types
import zipfile

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint
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


@pytest.fixture(scope="module")
def good():
    return examples.whole()


def refused(path, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        checkpoint.load(path)
    assert str(error.value).startswith(f"--checkpoint={path} ")
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value), "torch's advice would execute the file"


# Small files that claim to be large.


def rebuilt(path, part, new, compression=zipfile.ZIP_STORED):
    """The same archive with another part, whose checksum is right."""
    whole = path.rename(path.with_name("whole.pt"))
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", compression) as archive:
        for name in old.namelist():
            archive.writestr(name, new if name.endswith(part) else old.read(name))


def shared_lists(good, path):
    value = [0]
    for _ in range(60):
        value = [value, value]
    examples.save(path.parent, {**good, "extra_state": {"x": value}}, path.name)


def wide(good, path):
    import torch

    examples.save(path.parent, {**good, "model": {"x": torch.zeros(1).expand(2**20, 2**20)}}, path.name)


def packed(good, path):
    examples.save(path.parent, good, path.name)
    rebuilt(path, "/data/1", bytes(2**31), zipfile.ZIP_DEFLATED)


def doubled(good, path):
    """A key of shared tuples, whose hash takes forever."""
    examples.save(path.parent, good, path.name)
    rebuilt(path, "/data.pkl", b"\x80\x02(K\x00\x85q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00K\x01st.")


@pytest.mark.parametrize("write", drills_but([shared_lists, wide, packed, doubled], [wide, doubled]))
def test_a_bomb_is_refused_in_one_sentence(torch, good, tmp_path, write, isolated, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SECONDS", 2)
    write(good, tmp_path / "bomb.pt")
    start = time.process_time()
    refused(tmp_path / "bomb.pt", r"takes more than \d seconds or \d.\d GiB of memory, far more than its size")
    assert time.process_time() - start < 5, "of this process"


# Code.


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "pickle"])
@pytest.mark.parametrize(("function", "name"), [(os.system, "posix.system"), (eval, "eval"), (subprocess.call, "call")])
def test_code_in_a_checkpoint_is_refused_and_never_runs(torch, good, tmp_path, legacy, function, name):
    made = tmp_path / "made"
    call = Call(function, f"open({str(made)!r}, 'w')" if function is eval else f"touch {made}")
    for place in ("args", "model", "extra_state"):
        torch.save({**examples.saved(good), place: call}, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
        refused(tmp_path / "x.pt", rf"x.pt refers to [\w.]*{name} and was refused; nothing in it was executed")
    (tmp_path / "x.pt").write_bytes(pickle.dumps(call, protocol=2))
    refused(tmp_path / "x.pt", "x.pt")
    assert not made.exists()


def test_a_class_of_fairseq_is_never_the_thing_itself(torch, good, tmp_path, monkeypatch):
    """It is not imported, even where it exists; its values do not count."""
    for name in ("fairseq", "fairseq.optim", "fairseq.optim.adam"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    class FairseqAdamConfig:
        def __setstate__(self, state):
            raise AssertionError("code of fairseq ran")

    FairseqAdamConfig.__module__, FairseqAdamConfig.__qualname__ = "fairseq.optim.adam", "FairseqAdamConfig"
    sys.modules["fairseq.optim.adam"].FairseqAdamConfig = FairseqAdamConfig
    config = FairseqAdamConfig()
    config.sum = 3.0
    extra = {**good["extra_state"], "more": config, "val_loss": np.float64(3.5)}
    for legacy in (False, True):
        path = examples.save(tmp_path, {**good, "extra_state": extra}, _use_new_zipfile_serialization=not legacy)
        found = checkpoint.load(path)
        assert (found.updates, found.epoch) == (examples.UPDATES, examples.EPOCH)


def test_omegaconf_is_read_without_it(torch, good, tmp_path, monkeypatch):
    omegaconf = pytest.importorskip("omegaconf")
    expected, args = checkpoint.load(examples.save(tmp_path, good)).args, dict(good["args"])
    kinds = {"model": "arch", "optimizer": "optimizer", "lr_scheduler": "lr_scheduler", "criterion": "criterion"}
    sections = {section: {"_name": args.pop(name)} for section, name in kinds.items()}
    for name in list(args):
        section = "model" if "coder_" in name or "share" in name else "optimization"
        sections.setdefault(section, {})[name] = args.pop(name)
    path = examples.save(tmp_path, {**good, "args": None, "cfg": omegaconf.OmegaConf.create(sections)})
    for name in [name for name in sys.modules if name.split(".")[0] == "omegaconf"]:
        monkeypatch.setitem(sys.modules, name, None)
    found = checkpoint.load(path).args
    assert {name: value for name, value in found.items() if value is not None} == {
        name: value for name, value in expected.items() if value is not None
    }


def test_torch_before_2_6_is_refused_before_it_loads(torch, good, tmp_path, monkeypatch):
    path = examples.save(tmp_path, good)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("its loader can be made to execute a file"))
    for version in ("2.5.1+cu121", "1.13.0", "2.5"):
        monkeypatch.setattr(torch, "__version__", version)
        refused(path, r"was not read: PyTorch .* is installed, whose weights-only .*; install 2.6 or later")


# What is no checkpoint.


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file or directory; specify a .pt file"),
        (lambda path: path.unlink() or path.mkdir(), "cannot be read: Is a directory; specify a .pt file"),
        (lambda path: path.write_text("hello\n" * 100), "is damaged, truncated, or not a checkpoint that torch can"),
    ],
    ids=["missing", "folder", "text"],
)
def test_a_file_that_cannot_be_read_is_named(torch, good, tmp_path, spoil, sentence, isolated):
    path = examples.save(tmp_path, good)
    spoil(path)
    refused(path, sentence)


def test_another_file_of_torch_is_no_checkpoint(torch, good, tmp_path):
    for content in ({"state": good["model"]}, [1, 2]):
        torch.save(examples.saved(content), tmp_path / "odd.pt")
        refused(tmp_path / "odd.pt", "contains no 'model', so it is not a fairseq checkpoint")


@pytest.mark.parametrize("tries", [24, pytest.param(320, marks=pytest.mark.drill)])
def test_one_flipped_bit_or_a_cut_is_refused_or_changes_nothing(torch, good, tmp_path, tries):
    path, chance = examples.save(tmp_path, good), random.Random(16)
    expected, content = checkpoint.load(path), path.read_bytes()
    count = 0
    for i in range(tries):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content[: chance.randrange(len(content))] if i % 4 == 3 else damaged)
        try:
            found = checkpoint.load(path)
        except UserError:
            count += 1
        else:
            np.testing.assert_equal(vars(found), vars(expected))
    assert count > 0.8 * tries, "most bits of a checkpoint are of its numbers"


# Values.


def history(**change):
    return lambda c: {"optimizer_history": [{**c["optimizer_history"][0], **change}]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: {"model": c["model"] | {"x": np.array([1, np.inf])}}, r": model\['x'\] is not finite; use an ear"),
        (lambda c: {"model": c["model"] | {"x": "text"}}, r" is not laid out like a fairseq checkpoint \(TypeError"),
        (lambda c: {"args": c["args"] | {"arch": 3}}, r" is not laid out like a fairseq checkpoint \(TypeError"),
        (lambda _: {"args": None}, r" is not laid out like a fairseq checkpoint \(KeyError: \"'cfg'\"\); use one from"),
        (history(num_updates="forty"), r" is not laid out like a fairseq checkpoint \(ValueError: .*forty"),
        (lambda _: {"last_optimizer_state": {"state": {"0": 1}}}, " is not laid out like"),
    ],
)
def test_values_that_make_no_sense(good, change, sentence):
    with pytest.raises(UserError, match=f"^x.pt{sentence}"):
        checkpoint.parsed(good | change(good), "x.pt")


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
def test_the_epoch_to_go_on_with(good, iterator, epoch):
    content = good | {"extra_state": {"train_iterator": iterator}, "last_optimizer_state": None}
    assert checkpoint.parsed(content, "x.pt").epoch == epoch
