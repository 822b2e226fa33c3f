"""Tokenised splits as inputs of a run: their fingerprints, and their batches on the mesh."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.checksums import stream
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.rows import round_up
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.loader import fill
from convs2s_jax.data.plan import Plan, PlannedBatch, plan_all
from convs2s_jax.data.shapes import Shape, choose_shapes
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.training import sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run.config import AnyModel

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
    src: TokenizedText
    tgt: TokenizedText
    longest: int | None = None

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of tokens of each source, after truncation, and of each target, end symbols included."""
        src = self.src.lengths + 1
        return src if self.longest is None else np.minimum(src, self.longest), self.tgt.lengths + 1


def fingerprint(src: TokenizedText, tgt: TokenizedText) -> int:
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


def check_unchanged(name: str, found: Known, known: Mapping[str, Known], *, where: str, remedy: str) -> None:
    """Check that a split is the one whose fingerprint a checkpoint stores.

    Args:
      name: "train", "valid" or "test".
      found: fingerprint of the split: `fingerprint` of "train", `fingerprint_of_text` of the others.
      known: fingerprints by name. A split that was missing (None) may be any.
      where: the workdir, for the message.
      remedy: what the user can do, besides restoring the data.

    Raises:
      UserError: the split has changed.
    """
    if known.get(name) not in (None, found):
        what = {"train": "training", "valid": "validation", "test": "test"}[name]
        how = "have changed since its last checkpoint" if found else "are missing, but its last checkpoint had them"
        raise UserError(f"the {what} data of --workdir={where} {how}: restore them, or {remedy}")


def batch_on(mesh: Mesh, split: Split, plan: Plan, planned: PlannedBatch) -> Batch:
    """Return a planned batch, its rows sharded over the mesh; padding rows make the number of rows divisible.

    Padding rows add nothing to sums. So the last batch of an epoch or a validation set need not be dropped.
    """
    shape, shards, where = plan.shapes[planned.shape], sharding.row_shards(mesh), sharding.batch_sharding(mesh)
    rows = round_up(shape.rows, shards)
    size = rows // shards

    def begin(index: tuple[slice, ...] | None) -> int:
        return index[0].start or 0 if index else 0

    # all shards of this process are filled at once, and once each, although several devices may hold the same shard
    begins = sorted(set(map(begin, where.addressable_devices_indices_map((rows,)).values())))
    mine = np.concatenate([planned.rows[i : i + size] for i in begins])

    def side(sentences: TokenizedText, length: int) -> jax.Array:
        filled = fill(sentences, mine, (size * len(begins), length)).reshape(-1, size, length)
        parts = dict(zip(begins, filled, strict=True))
        return jax.make_array_from_callback((rows, length), where, lambda index: parts[begin(index)])

    return Batch(src=side(split.src, shape.src), tgt=side(split.tgt, shape.tgt))


HELD_OUT_SHAPES = 3
"""Number of batch shapes for the validation and the test set together. Each is a separate program, which takes longer
to compile than a short validation to compute."""


def held_out_shapes(cfg: AnyModel, splits: Sequence[Split], *, tokens: int) -> tuple[Shape, ...]:
    """Return shapes for batches of at most `tokens` tokens that fit all lines of these splits, which share programs."""
    if not splits:
        return ()
    src, tgt = (np.concatenate(side) for side in zip(*(_lengths(cfg, one) for one in splits), strict=True))
    return choose_shapes(src, tgt, tokens=tokens, count=HELD_OUT_SHAPES)


def planned(cfg: AnyModel, split: Split, shapes: tuple[Shape, ...]) -> Plan:
    """The batches of a validation in shapes of `held_out_shapes`."""
    return plan_all(*_lengths(cfg, split), shapes)


def _lengths(cfg: AnyModel, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each source and target, truncated to the model's positions."""
    src, tgt = split.lengths()
    return np.minimum(src, cfg.max_source), np.minimum(tgt, cfg.max_target)
