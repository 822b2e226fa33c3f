"""A tokenised split of a corpus, for training, validation or test, and the check that it has not changed."""

import dataclasses
import zlib
from collections.abc import Mapping

import numpy as np

from convs2s_jax.core.checksums import stream
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.parallel_text import ParallelText, Recognise
from convs2s_jax.data.store import TokenStore

Known = int | str | None
"""A fingerprint of a split; None if there is no such split, or nothing is known of it."""


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: its text and its token ids, side by side.

    Attributes:
      text: the lines; those of the training split are dropped once it is prepared, unless each epoch resegments them.
      src: token ids of the sources.
      tgt: token ids of the targets.
      longest: sources are truncated to this number of tokens, end symbol included; None for no limit.
    """

    text: ParallelText
    src: TokenStore
    tgt: TokenStore
    longest: int | None = None

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of tokens of each source, after truncation, and of each target, end symbols included."""
        src = self.src.lengths + 1
        return src if self.longest is None else np.minimum(src, self.longest), self.tgt.lengths + 1


def fingerprint(src: TokenStore, tgt: TokenStore) -> int:
    """Return a checksum of all token ids of a split, to check that a continued run has the same training data."""
    value = 0
    for part in (src.tokens, src.offsets, tgt.tokens, tgt.offsets):
        value = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, value)
    return value


def fingerprint_of_text(text: ParallelText) -> str | None:
    """Return a checksum of all lines of a split; None if there are none.

    Validation and test data are compared by their text: scores compare text, and decoding has no token ids of it.
    """
    if not len(text):
        return None
    content = stream()
    for side in (text.src, text.tgt):
        content.update(len(side).to_bytes(8, "little"))
        for line in side:
            data = line.encode("utf-8")
            content.update(len(data).to_bytes(8, "little") + data)
    return content.hexdigest()


def recogniser(known: Mapping[str, Known]) -> Recognise:
    """Return a function: whether a validation split may be that of the run with the fingerprints `known`."""
    return lambda valid: known.get("valid") is None or known["valid"] == fingerprint_of_text(valid)


def check_unchanged(name: str, found: Known, known: Mapping[str, Known], *, where: str, remedy: str) -> None:
    """Check that a split is the one whose fingerprint a checkpoint stores.

    Args:
      name: "train", "valid" or "test".
      found: fingerprint of the split: `fingerprint` of "train", `fingerprint_of_text` of the others.
      known: fingerprints by name. A split that was missing (None), or that an earlier version did not store, may be
        any.
      where: the workdir, for the message.
      remedy: what the user can do, besides restoring the data.

    Raises:
      UserError: the split has changed.
    """
    if known.get(name) not in (None, found):
        what = {"train": "training", "valid": "validation", "test": "test"}[name]
        how = "have changed since its last checkpoint" if found else "are missing, but its last checkpoint had them"
        raise UserError(f"the {what} data of --workdir={where} {how}: restore them, or {remedy}")
