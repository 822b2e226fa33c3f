"""Tokenised splits as inputs of a run: checked, cached, resegmented, and as batches on the mesh."""

import contextlib
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.checksums import DamagedError, checksum, parsed, seal, stream, unseal
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.files import content, replace_file
from convs2s_jax.core.rows import round_up
from convs2s_jax.data import corpora, parallel_text, plan, segmentation, shapes, tokens_on_disk
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.loader import Sentences, fill
from convs2s_jax.data.parallel_text import ParallelText
from convs2s_jax.data.plan import Plan, PlannedBatch
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.training import sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run.config import Config

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


def longest(cfg: Config) -> tuple[int, int]:
    """Maximum number of tokens of a source and of a target in training."""
    most = cfg.data.batch.max_length
    return min(most, cfg.model.max_source), min(most, cfg.model.max_target)


def by_side(cfg: Config, source: int, target: int) -> dict[str, int]:
    """Lengths of a source and of a target, by the names of their sides in messages.

    A language model has no source, and a target of a classifier is a label: the only length then has the name "".
    """
    if cfg.data.one_sided:
        return {"": target}
    return {"": source} if cfg.classifies else {"source": source, "target": target}


def limits(cfg: Config, source: int, target: int) -> str:
    """Describe maximum lengths, as in "62 source or 62 target tokens"."""
    return " or ".join(f"{most} {side}".strip() for side, most in by_side(cfg, source, target).items()) + " tokens"


def batch_shapes(cfg: Config, src: np.ndarray, tgt: np.ndarray) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Return shapes for pairs of these lengths: with the least padding, and rounded to the multiples the run sets."""
    batch, (max_source, max_target) = cfg.data.batch, longest(cfg)
    tight = shapes.choose_shapes(src, tgt, tokens=batch.tokens, count=batch.shapes)
    most = (1 if cfg.data.one_sided else max_source, max_target)
    return tight, shapes.rounded(
        tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=most
    )


def usable_rows(cfg: Config, train: Split, tell: Tell) -> tuple[np.ndarray, str]:
    """Return the indices of the examples that are neither empty nor too long, [n], and how many are used and skipped.

    Raises:
      UserError: none is left.
    """
    max_source, max_target = longest(cfg)
    src, tgt = train.lengths()
    rows, skipped = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    has, skips = ("has an empty side", "with an empty side") if cfg.examples == "pairs" else ("is empty", "as empty")
    used = (
        f"{len(rows)} used, {skipped.empty} skipped {skips}, {skipped.too_long} skipped as longer than "
        f"{limits(cfg, max_source, max_target)}"
    )
    tell(f"training {cfg.examples}: {used}")
    if len(rows) == 0:
        most, by, what = cfg.data.batch.max_length, "data.batch.max_length", "it"
        if (shortest := min(by_side(cfg, max_source, max_target).values())) < most:
            most, by, what = shortest, "the model's positions", "them"
        raise UserError(
            f"no training {cfg.examples.removesuffix('s')} is left: each {has} or is longer than the {most} tokens "
            f"of {by}; raise {what}"
        )
    return rows, used


def check_sampling(cfg: DataConfig, vocabularies: Vocabularies) -> None:
    """Raise UserError if the segmentation is to be sampled, but neither vocabulary can segment text in several ways."""
    sides = (vocabularies.src, vocabularies.tgt)
    check(
        not cfg.subword_sampling or any(one.segmenter.divides_words for one in sides),
        f"data.subword_sampling is {cfg.subword_sampling}, but the vocabularies consist of whole words: set it to 0, "
        "or data.vocabulary.kind to bpe or unigram",
    )


def segmented(
    cfg: DataConfig, train: Split, vocabularies: Vocabularies, *, seed: int, epoch: int, longest: tuple[int, int]
) -> Split:
    """Return the training data of an epoch: unchanged, or in a random segmentation that the arguments determine.

    A sentence whose random segmentation is too long keeps its best one. Labels and word lists are never resegmented.

    Args:
      cfg: `subword_sampling` is used.
      train: in the best segmentation, with its lines.
      vocabularies: of both sides.
      seed: of the run.
      epoch: from 1.
      longest: maximum number of tokens of a source and a target, end symbols included.
    """
    if not cfg.subword_sampling:
        return train

    def drawn(side: int, texts: Sequence[str], vocabulary: Vocabulary, best: TokenizedText) -> TokenizedText:
        if not vocabulary.segmenter.divides_words:
            return best
        found = segmentation.draw(texts, vocabulary, rate=cfg.subword_sampling, seed=(seed, epoch, side))
        cut_anyway = side == 0 and train.longest is not None and longest[0] >= train.longest
        return found if cut_anyway else segmentation.within(found, best, longest[side])

    return dataclasses.replace(
        train,
        src=drawn(0, train.text.src, vocabularies.src, train.src),
        tgt=drawn(1, train.text.tgt, vocabularies.tgt, train.tgt),
    )


def batch_on(mesh: Mesh, split: Split, plan: Plan, planned: PlannedBatch) -> Batch:
    """Return a planned batch, its rows sharded over the mesh; padding rows make the number of rows divisible.

    Padding rows add nothing to sums. So the last batch of an epoch or a validation set need not be dropped.
    """
    shape, shards = plan.shapes[planned.shape], row_shards(mesh)
    rows = round_up(shape.rows, shards)
    return Batch(
        src=_side(mesh, split.src, planned.rows, (rows, shape.src)),
        tgt=_side(mesh, split.tgt, planned.rows, (rows, shape.tgt)),
    )


def padding_on(mesh: Mesh, plan: Plan) -> float:
    """Share of padding in the batches of a plan as `batch_on` builds them, padding rows included, in [0, 1]."""
    shards = row_shards(mesh)
    if not any(shape.rows % shards for shape in plan.shapes):
        return plan.padding
    shapes = [plan.shapes[batch.shape] for batch in plan.batches]
    planned = sum(shape.rows * (shape.src + shape.tgt) for shape in shapes)
    whole = sum(round_up(shape.rows, shards) * (shape.src + shape.tgt) for shape in shapes)
    return 1.0 - (1.0 - plan.padding) * planned / whole


def _side(mesh: Mesh, sentences: Sentences, rows: np.ndarray, shape: tuple[int, int]) -> jax.Array:
    """[B, T]; each shard is read once, though several devices may hold it."""
    read: dict[int, np.ndarray] = {}

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        begin, end, _ = (index[0] if index else slice(None)).indices(shape[0])
        if begin not in read:
            read[begin] = fill(sentences, rows[begin:end], (end - begin, shape[1]))
        return read[begin]

    return jax.make_array_from_callback(shape, sharding.batch_sharding(mesh), part)


_FORMAT = 2


class KnownText(NamedTuple):
    """What an earlier start found in the same text.

    Attributes:
      train: the training split, without its lines.
      shared: how many validation and how many test pairs are also in it.
      unknown: the sentence about its unknown tokens, or "".
    """

    train: Split
    shared: tuple[int, ...]
    unknown: str


class TrainingText:
    """The lines of the training split, and those of the validation split, which may be held out from it.

    Text of tens of millions of pairs takes minutes to read and tens of gigabytes of memory, in each process. So it is
    only read if its tokens are not in the cache, where they are looked up by the checksums of its files.
    """

    def __init__(self, cfg: DataConfig, *, task: str) -> None:
        """Read the validation split.

        The training split is read too if it has no files, validation is held out from it, or each epoch resegments it.

        Args:
          cfg: the corpus.
          task: what is trained; the targets were checked for it.

        Raises:
          UserError: a split cannot be read.
        """
        self._cfg, self._task = cfg, task
        self._lines: ParallelText | None = None
        self._files = None if cfg.subword_sampling else corpora.checksums(cfg, "train")
        valid = None if self._files is None else parallel_text.read_own(cfg, "valid")
        if valid is None:
            self._files = None
            self._lines, valid = parallel_text.read_train_and_valid(cfg)
        self.valid = valid

    def lines(self) -> ParallelText:
        """The training split, read at the first call.

        Raises:
          UserError: it cannot be read, or its files have changed since they were recognised.
        """
        if self._lines is None:
            self._lines = parallel_text.read(self._cfg, "train")
            check(
                self._files is None or corpora.checksums(self._cfg, "train") == self._files,
                "the files of the training split changed while they were read: start again when they are complete",
            )
        return self._lines

    def forget(self) -> None:
        """Drop the lines, which may fill the memory of the host."""
        self._lines = None

    def origin(self) -> Any:
        """Return a JSON value that identifies this text."""
        return fingerprint_of_text(self.lines()) if self._files is None else self._files

    def record(self, folder: Path, fingerprints: Sequence[str | None]) -> Path | None:
        """The file in a cache with what earlier starts found in this text; None if it has no files.

        Args:
          folder: the cache.
          fingerprints: of both vocabularies, and of the validation and the test split.
        """
        if self._files is None:
            return None
        depends = {
            "format": _FORMAT,
            "files": self._files,
            "task": self._task,
            "one_sided": self._cfg.one_sided,
            "labelled": self._cfg.labelled,
            "fingerprints": fingerprints,
        }
        return folder / f"train-{checksum(json.dumps(depends, sort_keys=True).encode())}.json"

    def known(self, record: Path | None) -> KnownText | None:
        """Return what an earlier start left in the cache; None if it left nothing, or not all of it is intact."""
        if record is None:
            return None
        with contextlib.suppress(OSError, DamagedError, KeyError, TypeError, ValueError):
            found = unseal(parsed(content(record)))
            src, tgt = (tokens_on_disk.find(record.parent, f"train.{side}", found[side]) for side in ("src", "tgt"))
            if src is not None and tgt is not None:
                files = corpora.with_counts(self._cfg, "train", found["lines"])
                return KnownText(
                    Split(ParallelText((), (), "train", files), src, tgt), tuple(found["shared"]), found["unknown"]
                )
        return None


def remember(record: Path | None, found: KnownText) -> None:
    """Store what `TrainingText.known` returns. If the cache cannot be written, later starts read the text again."""
    if record is not None:
        kept = {
            "src": found.train.src.key,
            "tgt": found.train.tgt.key,
            "lines": [count for _, count in found.train.text.files],
            "shared": found.shared,
            "unknown": found.unknown,
        }
        with contextlib.suppress(OSError):
            replace_file(record, json.dumps(seal(kept)))
