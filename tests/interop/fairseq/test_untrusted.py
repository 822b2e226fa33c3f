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
from convs2s_jax.interop.fairseq import checkpoint, untrusted
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


def rebuilt(path, new, changed, compression=zipfile.ZIP_STORED):
    """An archive with other parts, whose checksums are right."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", compression) as archive:
        for name in old.namelist():
            archive.writestr(name, changed(name, old.read(name)))


def refused(path, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        checkpoint.load(path)
    assert str(error.value).startswith(f"--checkpoint={path} ")
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value), "torch's advice would execute the file"
    assert len(str(error.value)) < 1000


# Small files that claim to be large.


def shared_lists(torch, good, path):
    value = [0]
    for _ in range(60):
        value = [value, value]
    examples.save(path.parent, {**good, "extra_state": {"x": value}}, path.name)


def itself(torch, good, path):
    value = []
    value.append(value)
    examples.save(path.parent, {**good, "extra_state": value}, path.name)


def wide(torch, good, path):
    model = {**good["model"], "x": torch.zeros(1).expand(2**20, 2**20)}
    examples.save(path.parent, {**good, "model": model}, path.name)


def packed(torch, good, path):
    examples.save(path.parent, good, "whole.pt")
    zeros = bytes(2**31)
    whole = path.with_name("whole.pt")
    rebuilt(whole, path, lambda name, old: zeros if name.endswith("/data/1") else old, zipfile.ZIP_DEFLATED)


def raw(instructions):
    """A checkpoint whose pickle is that."""

    def write(torch, good, path):
        examples.save(path.parent, good, "whole.pt")
        new = b"\x80\x02" + instructions + b"."
        rebuilt(path.with_name("whole.pt"), path, lambda name, old: new if name.endswith("/data.pkl") else old)

    return write


def large_array(torch, good, path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1048576, 1048576), }"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


LIMITED = r"was not read: that takes more than \d seconds or \d.\d GiB of memory, far more than"
DOUBLED = b"K\x00\x85q\x00" + b"h\x00h\x00\x86q\x00" * 60
BOMBS = {
    "strides of a terabyte": (wide, LIMITED),
    "key of shared tuples": (raw(b"(" + DOUBLED + b"}h\x00K\x01st"), LIMITED),
    "packed": (packed, LIMITED),
    "a large array": (large_array, LIMITED),
    "shared lists": (shared_lists, "has lists that expand to more than 1000000 values or 50 levels"),
    "a list in itself": (itself, "has lists that expand to more than 1000000 values or 50 levels"),
}


@pytest.mark.parametrize("name", drills_but(BOMBS, [*BOMBS][:2]))
def test_a_bomb_is_refused_in_one_sentence(torch, good, tmp_path, name, isolated, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SECONDS", 2)
    write, sentence = BOMBS[name]
    path = tmp_path / ("bomb.npz" if write is large_array else "bomb.pt")
    write(torch, good, path)
    start = time.process_time()
    refused(path, sentence)
    assert time.process_time() - start < 5, "of this process"


# Code.


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "pickle"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "posix.system"), (eval, "eval"), (subprocess.check_output, r"(commands|subprocess)\.check_output")],
    ids=["system", "eval", "subprocess"],
)
def test_code_in_a_checkpoint_is_refused_and_never_runs(torch, good, tmp_path, legacy, function, name):
    made = tmp_path / "made"
    command = f"open({str(made)!r}, 'w')" if function is eval else f"touch {made}"
    call = Call(function, [command], None) if function is subprocess.check_output else Call(function, command)
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
    expected, given = checkpoint.load(examples.save(tmp_path, good)).args, good["args"]
    sections = {"lr_scheduler": {"_name": "fixed"}, "optimizer": {"_name": "nag"}, "task": {"source_lang": "de"}}
    model = {name: value for name, value in given.items() if name not in ("lr_scheduler", "optimizer", "arch")}
    cfg = omegaconf.OmegaConf.create({**sections, "model": {"_name": "fconv", **model}})
    path = examples.save(tmp_path, {**good, "args": None, "cfg": cfg})
    for name in [name for name in sys.modules if name.split(".")[0] == "omegaconf"]:
        monkeypatch.setitem(sys.modules, name, None)
    found = checkpoint.load(path).args
    assert {name: found[name] for name in expected} == expected


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
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: path.rename(path.with_name("x")) and path.mkdir(), "is not a file; specify a .pt or .npz file"),
        (lambda path: path.write_text("hello\n" * 100), "is not a checkpoint that torch can read"),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is not a checkpoint that torch can read"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "is not a checkpoint that torch can read"),
    ],
    ids=["missing", "folder", "text", "cut", "zip"],
)
def test_what_is_no_checkpoint_is_named(torch, good, tmp_path, spoil, sentence):
    path = examples.save(tmp_path, good)
    spoil(path)
    refused(path, sentence)


def test_a_process_that_fails_says_why(good, tmp_path, isolated, monkeypatch):
    path = examples.save(tmp_path, good)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.setattr(untrusted, "__file__", str(tmp_path / "missing.py"))
    refused(path, r"was not read: .*No such file or directory")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: {"state": c["model"], "lr": 3}, r"contains no 'model'.* \(it contains: state, lr\)"),
        (lambda _: [1, 2], r"contains no 'model'.* \(it contains: list\)"),
        (lambda c: c | {(1, 2): 3}, "has a dictionary whose keys are neither strings nor numbers"),
    ],
)
def test_odd_contents_are_named(torch, good, tmp_path, change, sentence):
    torch.save(examples.saved(change(good)), tmp_path / "odd.pt")
    refused(tmp_path / "odd.pt", sentence)


def test_arrays_need_their_arguments_and_hold_no_objects(tmp_path):
    np.savez(path := tmp_path / "state_dict.npz", a=np.zeros(2))
    must = "it must contain fairseq's arguments for state_dict.npz"
    with pytest.raises(UserError, match=rf"config.json is missing; {must}"):
        checkpoint.read(path)
    for text, sentence in (
        ("[1", "is not JSON"),
        ("[[1, 2]]", f"is not a JSON object; {must}, by name"),
        ("[" * 100_000, ".*it is nested too deeply"),
        ('{"seed": ' + "9" * 5000 + "}", "is not JSON"),
        (" " * (2**24 + 1), ".*more than 16,777,216 bytes"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=rf"config.json {sentence}"):
            checkpoint.read(path)
    (tmp_path / "config.json").write_text("{}")
    content, unchecked = checkpoint.read(path)
    assert (content["args"], content["model"]["a"].dtype) == ({}, np.float32)
    assert "config.json, have no checksum" in unchecked
    made = tmp_path / "made"
    np.savez(tmp_path / "objects.npz", a=np.array([Call(os.system, f"touch {made}")], dtype=object))
    (tmp_path / "broken.npz").write_text("no archive")
    for name in ("objects", "broken"):
        refused(tmp_path / f"{name}.npz", rf"{name}.npz is not an .npz file of plain arrays")
    assert not made.exists()


# Damage: the same numbers, an announcement or a refusal, never other numbers in silence.


def without_checksums(folder, values):
    import torch

    torch.serialization.set_crc32_options(False)
    try:
        return examples.save(folder, values)
    finally:
        torch.serialization.set_crc32_options(True)


def arrays(folder, values):
    examples.save(folder, values)
    return examples.save_arrays(folder, values["args"], values["model"])


FORMS = {
    "archive": (examples.save, ""),
    "arrays": (arrays, "config.json"),
    "without checksums": (without_checksums, "without checksums"),
    "older": (
        lambda folder, values: examples.save(folder, values, _use_new_zipfile_serialization=False),
        "PyTorch 1.6",
    ),
}


def outcome(path, expected):
    try:
        found = checkpoint.load(path)
    except UserError:
        return "refused"
    pairs = [(found.args, expected.args), (found.updates, expected.updates), (found.rate, expected.rate)]
    pairs += [(found.momentum is None, expected.momentum is None), (list(found.tensors), list(expected.tensors))]
    same = all(a == b for a, b in pairs) and all(
        np.array_equal(value, expected.tensors[name]) for name, value in found.tensors.items()
    )
    if same and found.momentum is not None:
        same = all(map(np.array_equal, found.momentum.buffers, expected.momentum.buffers))
    return "exact" if same else "announced" if found.unchecked else "wrong"


def outcomes(folder, values, form, tries):
    """What becomes of one file after each of so many flips, and a third as many cuts."""
    path, chance = FORMS[form][0](folder, values), random.Random(16)
    expected, content = checkpoint.load(path), path.read_bytes()
    assert FORMS[form][1] in expected.unchecked
    assert (form == "archive") == (expected.unchecked == "")
    found = []
    for i in range(tries * 4 // 3):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged if i < tries else content[: chance.randrange(len(content))])
        found.append(outcome(path, expected))
    return found


@pytest.mark.parametrize("form", ["archive", "arrays"])
def test_one_flipped_bit_or_a_cut_is_refused_or_changes_nothing(torch, good, tmp_path, form):
    found = outcomes(tmp_path, good, form, 24)
    assert set(found) <= {"exact", "refused"}
    assert found.count("refused") > 20, "most bits of a checkpoint are of its numbers"


@pytest.mark.drill
@pytest.mark.parametrize("form", FORMS)
def test_many_flips_and_cuts_are_noticed_or_announced(torch, good, tmp_path, form, tally):
    found = outcomes(tmp_path, good, form, 240)
    tally(tries=len(found), losses=found.count("wrong"))
