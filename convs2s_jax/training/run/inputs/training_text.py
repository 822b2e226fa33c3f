"""The training text, which is only read if its tokens are not cached yet.

Text of tens of millions of pairs takes minutes to read and tens of gigabytes of memory, in each process. So the cached
token files of a text are looked up by the checksums of its files.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convs2s_jax.core.checksums import DamagedError, checksum, parsed, seal, unseal
from convs2s_jax.core.config import check
from convs2s_jax.core.files import content, replace_file
from convs2s_jax.data import corpora, parallel_text, store
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.parallel_text import ParallelText, Recognise
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.training.run.inputs.dataset import Split, fingerprint_of_text

_FORMAT = 1


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
    """The lines of the training split, and those of the validation split, which may be held out from it."""

    def __init__(self, cfg: DataConfig, recognise: Recognise, *, task: str) -> None:
        """Read the validation split.

        The training split is read too if it has no files, validation is held out from it, or each epoch resegments it.

        Args:
          cfg: the corpus.
          recognise: as in `parallel_text.read`.
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
            self._lines, valid = parallel_text.read_train_and_valid(cfg, recognise=recognise)
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

    def known(self, folder: Path, vocabularies: Vocabularies, held_out: Sequence[str | None]) -> KnownText | None:
        """Return what an earlier start left in the cache; None if it left nothing, or not all of it is intact.

        Args:
          folder: the cache.
          vocabularies: of both sides.
          held_out: fingerprints of the validation and the test split.
        """
        if self._files is None:
            return None
        with contextlib.suppress(OSError, DamagedError, KeyError, TypeError, ValueError):
            record = unseal(parsed(content(self._record(folder, vocabularies, held_out))))
            src, tgt = (store.find(folder, f"train.{side}", record[side]) for side in ("src", "tgt"))
            if src is not None and tgt is not None:
                files = corpora.with_counts(self._cfg, "train", record["lines"])
                text = ParallelText((), (), "train", files)
                return KnownText(Split(text, src, tgt), tuple(record["shared"]), record["unknown"])
        return None

    def remember(
        self, folder: Path, vocabularies: Vocabularies, held_out: Sequence[str | None], found: KnownText
    ) -> None:
        """Store what `known` returns for later starts. If the cache cannot be written, they read the text again."""
        if self._files is None:
            return
        record: Mapping[str, Any] = {
            "src": found.train.src.key,
            "tgt": found.train.tgt.key,
            "lines": [count for _, count in found.train.text.files],
            "shared": found.shared,
            "unknown": found.unknown,
        }
        with contextlib.suppress(OSError):
            replace_file(self._record(folder, vocabularies, held_out), json.dumps(seal(record)))

    def _record(self, folder: Path, vocabularies: Vocabularies, held_out: Sequence[str | None]) -> Path:
        """The file for this text, these vocabularies and these other splits."""
        depends = {
            "format": _FORMAT,
            "files": self._files,
            "task": self._task,
            "one_sided": self._cfg.one_sided,
            "labelled": self._cfg.labelled,
            "vocabularies": [vocabularies.src.fingerprint, vocabularies.tgt.fingerprint],
            "held_out": held_out,
        }
        return folder / f"train-{checksum(json.dumps(depends, sort_keys=True).encode())}.json"
