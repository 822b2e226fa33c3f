"""Small files that claim to be large: each is refused in one sentence, in bounded time and memory."""

import io
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint, files, pickles
from tests import tiny
from tests.helpers import drills_but
from tests.interop.fairseq import examples, hostile

SECONDS = 10
"""Of processor time for each file; most take a hundredth. What they claim would take hours or does not end."""


def doubled(times, first=b"K\x00"):
    """A tuple of itself twice, 2^times in all: (a, a), as instructions of a pickle."""
    return first + b"\x85q\x00" + b"h\x00h\x00\x86q\x00" * times


def shared_lists(torch, good, path):
    value = [0]
    for _ in range(60):
        value = [value, value]
    torch.save({**good, "extra_state": {"x": value}}, path)


def itself(torch, good, path):
    value = []
    value.append(value)
    torch.save({**good, "extra_state": value}, path)


def wide(torch, good, path):
    torch.save({**good, "model": {**good["model"], "x": torch.zeros(1).expand(2**20, 2**20)}}, path)


def wide_momentum(torch, good, path):
    state = {
        "state": {0: {"momentum_buffer": torch.zeros(1).expand(2**40)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    torch.save({**good, "last_optimizer_state": state}, path)


def without_numbers(torch, good, path):
    torch.save({**good, "model": {"x": torch.empty(2**40, device="meta")}}, path)


def short_storage(torch, good, path):
    whole = path.with_name("whole.pt")
    torch.save(good, whole)
    hostile.rebuilt(whole, path, lambda name, content: content[:4] if name.endswith("/data/0") else content)


def many_entries(torch, good, path):
    torch.save({**good, "extra_state": [0] * 1_100_000}, path)


def views(torch, good, path):
    table = torch.zeros(2**16)
    torch.save({**good, "extra_state": [table[i:] for i in range(2000)]}, path)


def packed(torch, good, path):
    torch.save(good, whole := path.with_name("whole.pt"))
    zeros = bytes(2**26)
    hostile.rebuilt(whole, path, lambda name, old: zeros if name.endswith("/data/1") else old, zipfile.ZIP_DEFLATED)


def many_parts(_torch, _good, path):
    path.write_bytes(b"PK\x03\x04" + b"PK\x01\x02" * 100_001)


def overlapping(torch, good, path):
    torch.save(good, path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        (size,) = {part.file_size for part in archive.infolist() if part.filename.endswith("/data/0")}
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"/data/0"))
    assert int.from_bytes(content[entry + 20 : entry + 24], "little") == size
    content[entry + 20 : entry + 28] = (2**31).to_bytes(4, "little") * 2
    path.write_bytes(content)


def raw(instructions):
    """A checkpoint whose pickle is that."""

    def write(torch, good, path):
        torch.save(good, whole := path.with_name("whole.pt"))
        hostile.with_pickle(whole, path, instructions)

    return write


BOMBS = {
    "shared lists": (shared_lists, "lists with shared items that would expand to more than 1000000 items"),
    "a list in itself": (itself, "has lists that are nested deeper than 100 levels or contain themselves"),
    "strides of a terabyte": (
        wide,
        r"a tensor of 1099511627776 elements over a storage of 1; its shape or strides",
    ),
    "momentum of a terabyte": (wide_momentum, r"a tensor of 1099511627776 elements over a storage of 1"),
    "no storage": (
        without_numbers,
        "refers to torch._utils._rebuild_meta_tensor_no_storage and was refused; nothing in it was",
    ),
    "short storage": (short_storage, r"a storage that claims \d+ bytes, but the file contains 4 of them"),
    "many entries": (many_entries, "has more than 1000000 instructions"),
    "many views": (views, r"has tensors of \d+ bytes over far smaller storages"),
    "packed": (packed, r"is \d+ bytes long but unpacks to \d+, .*; write it again uncompressed"),
    "many parts": (many_parts, "has more than 100000 entries"),
    "overlapping parts": (overlapping, "is not a checkpoint that torch can read: it is damaged"),
    "deep": (raw(b"]" * 200_000 + b"a" * 199_999), "has lists that are nested deeper than 100 levels"),
    "key of shared tuples": (
        raw(b"(" + doubled(60) + b"}h\x00K\x01st"),
        "a dictionary whose keys are neither strings nor numbers",
    ),
    "bytearray": (
        raw(b"c__builtin__\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R"),
        "refers to builtins.bytearray",
    ),
    "memo": (raw(b"Nr\xff\xff\xff\xff"), "contains no 'model'"),
    "long text": (raw(b"X\xff\xff\xff\x7fabc"), "is damaged, truncated, or not a checkpoint"),
}


@pytest.fixture(scope="module")
def good():
    return examples.whole()


@pytest.mark.parametrize("name", drills_but(BOMBS, BOMBS.keys() - {"shared lists"}))
def test_a_bomb_is_refused_in_one_sentence(good, tmp_path, name):
    torch = pytest.importorskip("torch")
    write, sentence = BOMBS[name]
    write(torch, good, tmp_path / "bomb.pt")
    start = time.process_time()
    with pytest.raises(UserError, match=sentence) as error:
        checkpoint.load(tmp_path / "bomb.pt")
    assert time.process_time() - start < SECONDS
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert str(error.value).startswith(f"--checkpoint={tmp_path / 'bomb.pt'} ")


LIMITED = """
import resource, sys
from pathlib import Path
from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint
import torch
limit = int(sys.argv[1])
before = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + limit, before + limit))
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
for name in sys.argv[2:]:
    try:
        checkpoint.load(Path(name))
    except UserError as error:
        print("REFUSED", len(str(error)))
"""


@pytest.mark.drill
def test_all_bombs_fit_into_half_a_gigabyte(good, tmp_path, tally):
    """In a process of limited memory; one of them is the archive of 3 GB."""
    torch = pytest.importorskip("torch")
    for i, (write, _) in enumerate(BOMBS.values()):
        write(torch, good, tmp_path / f"{i}.pt")
    with (
        zipfile.ZipFile(tmp_path / "zeros.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as part,
    ):
        for _ in range(3000):
            part.write(bytes(2**20))
    paths = [*(tmp_path / f"{i}.pt" for i in range(len(BOMBS))), tmp_path / "zeros.pt"]
    assert paths[-1].stat().st_size < 16e6
    command = [sys.executable, "-c", LIMITED, str(2**29), *map(str, paths)]
    result = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, timeout=240, check=False)
    tally(tries=len(paths), losses=len(paths) - result.stdout.count("REFUSED"))
    assert result.returncode == 0, result.stderr


def test_a_storage_of_a_terabyte_in_the_older_format(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "bomb.pt"
    torch.save({"model": {"x": torch.zeros(77)}}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    first = content.index(b"K\x4d")  # the number of elements of the storage
    path.write_bytes(content[:first] + b"\x8a\x06" + (2**40).to_bytes(6, "little") + content[first + 2 :])
    with pytest.raises(
        UserError, match=rf"bomb.pt .*: it has storages that claim {2**42} bytes, but is only \d+ bytes long"
    ):
        checkpoint.load(path)


def npz(path, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    (path.parent / "config.json").write_text("{}")
    return path


def header(shape, dtype="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize(
    ("parts", "compression", "sentence"),
    [
        ({"x.npy": header((2**20, 2**20))}, zipfile.ZIP_STORED, "'x.npy' whose size does not match its header"),
        ({"x.npy": header((10,)) + bytes(36)}, zipfile.ZIP_STORED, "'x.npy' whose size does not match its header"),
        (
            {"x.npy": header((2**24,)) + bytes(2**26)},
            zipfile.ZIP_DEFLATED,
            "unpacks to .*; write it again uncompressed",
        ),
        ({"x.npy": header((1,), "|O") + bytes(8)}, zipfile.ZIP_STORED, "'x.npy' that is not an array of numbers"),
        ({"x.npy": b"\x93NUMPY\x09\x00"}, zipfile.ZIP_STORED, "not an array of numbers"),
        ({"x.npy": header((-1,)) + bytes(4)}, zipfile.ZIP_STORED, "x.npz is not an .npz file of plain arrays"),
    ],
    ids=["shape", "short", "packed", "objects", "version", "negative"],
)
def test_arrays_that_claim_more_than_they_hold(tmp_path, parts, compression, sentence):
    with pytest.raises(UserError, match=sentence):
        files.read(npz(tmp_path / "x.npz", parts, compression))


def test_arguments_beside_the_arrays_are_bounded(tmp_path):
    path = npz(tmp_path / "x.npz", {"x.npy": header((1,)) + bytes(4)})
    for text, sentence in (
        ("[" * 100_000, "config.json .*it is nested too deeply"),
        ('{"seed": ' + "9" * 5000 + "}", "config.json is not JSON"),
        (" " * (2**24 + 1), "config.json .*more than 16,777,216 bytes"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=sentence):
            files.read(path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match=r"config.json .*is a folder, not a file"):
        files.read(path)


def test_the_instructions_that_torch_writes_are_enough(good):
    """Every name and instruction of a checkpoint is known; others are refused by name."""
    with pytest.raises(pickles.RefusedError, match="contains the pickle instruction SHORT_BINUNICODE, which torch"):
        pickles.inspect(io.BytesIO(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), (), lambda *_: 0)


def test_torch_before_2_6_is_refused(good, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    path = examples.save(tmp_path, good)

    def never(*_, **__):
        raise AssertionError("the loader of this version can be made to execute a file")

    for version in ("2.5.1+cu121", "1.13.0", "2.5"):
        monkeypatch.setattr(torch, "__version__", version)
        with monkeypatch.context() as inner:
            inner.setattr(torch, "load", never)
            with pytest.raises(
                UserError, match=r"PyTorch .* is installed, whose weights-only .*; install 2.6 or later"
            ):
                examples.bring_in(path, tmp_path / "run")
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    assert checkpoint.load(path).updates == examples.UPDATES
