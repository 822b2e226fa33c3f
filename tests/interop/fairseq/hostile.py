"""Checkpoints as nobody's fairseq wrote them: archives with other parts, pickles of any instructions, flipped bits."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint


def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rebuilt(
    path: Path, new: Path, changed: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    """An archive with other parts, whose checksums are right."""
    with zipfile.ZipFile(new, "w", compression) as archive:
        for name, content in parts(path).items():
            archive.writestr(name, changed(name, content))
    return new


def with_pickle(path: Path, new: Path, instructions: bytes) -> Path:
    """An archive with another pickle, of protocol 2."""
    pickle = b"\x80\x02" + instructions + b"."
    return rebuilt(path, new, lambda name, content: pickle if name.endswith("/data.pkl") else content)


def flipped(content: bytes, bit: int) -> bytes:
    result = bytearray(content)
    result[bit // 8] ^= 1 << bit % 8
    return bytes(result)


def same(a: checkpoint.Checkpoint, b: checkpoint.Checkpoint) -> bool:
    """Whether two checkpoints are equal, bit for bit."""
    if (a.args, a.updates, a.epoch, a.rate, a.why) != (b.args, b.updates, b.epoch, b.rate, b.why):
        return False
    if (a.momentum is None) != (b.momentum is None) or list(a.tensors) != list(b.tensors):
        return False
    pairs = [(value, b.tensors[name]) for name, value in a.tensors.items()]
    if a.momentum is not None and b.momentum is not None:
        if a.momentum.rate != b.momentum.rate or len(a.momentum.buffers) != len(b.momentum.buffers):
            return False
        pairs += list(zip(a.momentum.buffers, b.momentum.buffers, strict=True))
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def outcome(path: Path, expected: checkpoint.Checkpoint) -> str:
    """Loads a damaged file: 'exact', 'announced', 'refused', or 'wrong' for other numbers in silence."""
    try:
        found = checkpoint.load(path)
    except UserError as error:
        return "refused" if "\n" not in str(error) and len(str(error)) < 1000 else "wrong"
    if same(found, expected):
        return "exact"
    return "announced" if found.unchecked else "wrong"
