"""The vocabularies of the two sides: learned from the training text of a corpus, saved and loaded."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tqdm

from convs2s_jax.core import files
from convs2s_jax.core.checksums import DamagedError, checksum, parsed, seal, unseal
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.text import Normalization, normalizer, visible
from convs2s_jax.data import bpe_codes, pieces, symbols
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Vocabulary

_CHECKSUMS = "checksums.json"


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of the two sides.

    Attributes:
      src: of the source.
      tgt: of the target; the same object if one vocabulary serves both sides.
    """

    src: Vocabulary
    tgt: Vocabulary

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.src is self.tgt

    def normalizing(self, rules: tuple[Normalization, ...]) -> "Vocabularies":
        """Return the vocabularies for text that was not normalised. Raises UserError as `normalizer` does."""
        normalizer(rules)
        src = dataclasses.replace(self.src, normalize=rules)
        return Vocabularies(src, src if self.joint else dataclasses.replace(self.tgt, normalize=rules))


def build(cfg: VocabularyConfig, text: ParallelText, seed: int, *, one_sided: bool = False) -> Vocabularies:
    """Learn the vocabularies of both sides. The same text and seed give the same vocabularies.

    Progress bars are shown if standard error is a terminal.

    Args:
      seed: for the random sample of lines, if a side has more than `cfg.sample` lines.
      one_sided: the sources of this corpus are empty, and both sides use the target vocabulary.

    Raises:
      UserError: the text does not allow the requested sizes.
    """
    src, tgt = _sample(text.src, cfg.sample, seed), _sample(text.tgt, cfg.sample, seed)
    if one_sided:
        only = _train(cfg, [tgt], "tgt", cfg.tgt_size)
        return Vocabularies(only, only)
    if cfg.joint:
        joint = _train(cfg, [src, tgt], "src", cfg.src_size)
        return Vocabularies(joint, joint)
    return Vocabularies(_train(cfg, [src], "src", cfg.src_size), _train(cfg, [tgt], "tgt", cfg.tgt_size))


def build_labelled(cfg: VocabularyConfig, text: ParallelText, seed: int) -> Vocabularies:
    """Learn the vocabulary of the texts, and list the labels on the target side. Arguments as in `build`.

    Raises:
      UserError: a joint vocabulary was requested, or there are fewer than two labels.
    """
    check(not cfg.joint, "data.vocabulary.joint is True: labels always have a separate list; remove it")
    src = _train(cfg, [_sample(text.src, cfg.sample, seed)], "src", cfg.src_size)
    return Vocabularies(src, symbols.learn_labels(text.tgt))


def save(vocabularies: Vocabularies, folder: Path) -> None:
    """Write src.* and tgt.*, or joint.*, and their checksums to `folder`. They replace what was written there before.

    Raises:
      UserError: the folder cannot be written, or has a vocabulary that is not listed in its checksums.
    """
    sides = {"src": vocabularies.src, "tgt": vocabularies.tgt}
    with files.writing(folder, "choose another folder"), files.new_folder(folder) as new:
        for name, vocabulary in ({"joint": vocabularies.src} if vocabularies.joint else sides).items():
            vocabulary.save(new / f"{name}{vocabulary.suffix}")
        sums = {path.name: checksum(path.read_bytes()) for path in sorted(new.iterdir())}
        (new / _CHECKSUMS).write_text(json.dumps(seal(sums), indent=2) + "\n", encoding="utf-8")
        with contextlib.suppress(OSError):  # it exists, perhaps since a moment ago
            new.rename(folder)
            return
        before, names = _written(folder), {path.name for path in new.iterdir()}
        for name in sorted(_NAMES - before):
            there = folder / name
            check(
                not os.path.lexists(there),
                f"{there} was not written by this run: move it, or train with its folder as data.vocabulary.dir",
            )
        for name in before - names:
            (folder / name).unlink(missing_ok=True)
        for name in sorted(names, key=lambda name: name == _CHECKSUMS):
            os.replace(new / name, folder / name)


def remove(folder: Path) -> None:
    """Remove what `save` has written into the subfolders of `folder`, and all of these folders that are then empty."""
    for place in [*folder.glob("*"), folder]:
        with contextlib.suppress(OSError):
            for name in _written(place):
                (place / name).unlink(missing_ok=True)
            place.rmdir()


def _written(folder: Path) -> set[str]:
    """Names of the files that `save` has written into a folder; all names of vocabularies if the list is damaged."""
    try:
        return {_CHECKSUMS, *unseal(parsed(files.content(folder / _CHECKSUMS)))} & {_CHECKSUMS, *_NAMES}
    except FileNotFoundError:
        return set()
    except DamagedError:
        return {_CHECKSUMS, *_NAMES}


def load(folder: Path) -> Vocabularies:
    """Read what `save` wrote, or a folder with SentencePiece models or dict.txt lists under the same names.

    A list of pieces, NAME.txt, may come with subword-nmt codes, NAME.codes, which split words into these pieces.

    Raises:
      UserError: a file is missing or damaged, or a side has several files.
    """
    if (folder / _CHECKSUMS).exists():  # otherwise written by another program
        _verify(folder)
    if joint := _load(folder, "joint"):
        return Vocabularies(joint, joint)
    src, tgt = _load(folder, "src"), _load(folder, "tgt")
    if src and tgt:
        return Vocabularies(src, tgt)
    sides = "a target" if src else "a source" if tgt else "any"
    raise UserError(
        f"{folder} contains no vocabulary for {sides} side: train first, or put src.model and tgt.model (SentencePiece "
        "models) or src.txt and tgt.txt (word lists) there"
    )


def _verify(folder: Path) -> None:
    """Verify the files in a folder by its checksums. UserError if one differs from what was written."""
    path = folder / _CHECKSUMS
    try:
        sums = unseal(parsed(files.content(path)))
    except (DamagedError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or delete it if the files next to it are correct"
        ) from error
    for name, expected in sums.items():
        if checksum(files.read_bytes(folder / name, remedy="restore it")) != expected:
            raise UserError(
                f"{folder / name} is damaged or was edited (its checksum does not match its content): restore it, or "
                f"delete {path} to keep deliberate edits"
            )


class _Sample(NamedTuple):
    """Some lines of a text, which are read as they are used.

    Attributes:
      lines: the text.
      drawn: sorted numbers of the lines.
    """

    lines: Sequence[str]
    drawn: Sequence[int]


def _sample(lines: Sequence[str], most: int, seed: int) -> _Sample:
    """Return a random sample of at most `most` lines in their original order."""
    if len(lines) <= most:
        return _Sample(lines, range(len(lines)))
    drawn = np.random.default_rng(seed).choice(len(lines), most, replace=False, shuffle=False)
    return _Sample(lines, np.sort(drawn).tolist())


def _train(cfg: VocabularyConfig, samples: Sequence[_Sample], side: str, size: int) -> Vocabulary:
    lines = (each.lines[i] for each in samples for i in each.drawn)
    total = sum(len(each.drawn) for each in samples)
    bar = map(visible, tqdm.tqdm(lines, f"vocabulary {side}", total, unit=" lines", disable=None))
    train = symbols.train_words if cfg.kind == "words" else pieces.train
    return train(cfg, bar, size=size, field=f"data.vocabulary.{side}_size")


def _load(folder: Path, name: str) -> Vocabulary | None:
    """Read NAME.model, NAME.txt, NAME.bpe.json, NAME.pieces.json or NAME.labels; None if no such file exists."""
    found = [suffix for suffix in _LOADERS if (folder / f"{name}{suffix}").exists()]
    if len(found) > 1:
        raise UserError(f"{folder} contains both {name}{found[0]} and {name}{found[1]}: delete one of them")
    return _LOADERS[found[0]](folder / f"{name}{found[0]}") if found else None


_LOADERS: Mapping[str, Callable[[Path], Vocabulary]] = MappingProxyType(
    {
        pieces.SentencePiece.suffix: pieces.load_model,
        symbols.Words.suffix: bpe_codes.load_list,
        bpe_codes.CodedWords.suffix: bpe_codes.load_coded,
        pieces.ListedPieces.suffix: pieces.load_listed,
        symbols.Labels.suffix: symbols.load_labels,
    }
)
_NAMES = {f"{name}{suffix}" for name in ("src", "tgt", "joint") for suffix in _LOADERS}
