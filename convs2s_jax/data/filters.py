"""Filters of the training text: which pairs are left out, for which reason, and how many."""

import itertools
import re
import tempfile
import unicodedata
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import did_you_mean
from convs2s_jax.core.files import writing
from convs2s_jax.core.packages import check_installed
from convs2s_jax.core.text import visible

Script = Literal[
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek", "Gujarati", "Gurmukhi",
    "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer", "Lao", "Latin", "Malayalam", "Mongolian",
    "Myanmar", "Oriya", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan",
]  # fmt: skip
Dropped = dict[str, tuple[int, tuple[tuple[int, str, str], ...]]]
"""Reason -> number of pairs left out, and examples: (position in the concatenated files, source, target)."""
_EXAMPLES = 3
_PART = 1 << 21
"""Approximate number of hashes that are compared at once."""


@record
class FilterConfig:
    """Which training pairs are left out.

    Checks run in the order of these fields. A pair is counted for the first that drops it; later ones do not see it.

    Attributes:
      unit: of lengths; characters suit Japanese and Chinese.
      min_length: of each side.
      max_length: of each side; 0: no limit.
      max_ratio: of the longer to the shorter side; 0: no limit.
      drop_identical: drop pairs whose sides are equal.
      scripts: of source and target, as [["Latin"], ["Han", "Hiragana", "Katakana"]]; empty: any.
      script_share: minimum share of the letters of a side in its scripts. A side without letters passes.
      languages: of source and target, as ["de", "en"]; empty: any. A pair is dropped if py3langid (pip install
        '.[language-id]') finds another with a probability of at least 0.5.
      drop_repeated: drop all but the first.
    """

    unit: Literal["words", "characters"] = "words"
    min_length: int = 0
    max_length: int = 0
    max_ratio: float = 0.0
    drop_identical: bool = False
    scripts: tuple[tuple[Script, ...], tuple[Script, ...]] = ((), ())
    script_share: float = 0.5
    languages: tuple[str, str] = ("", "")
    drop_repeated: tuple[Literal["pairs", "sources", "targets"], ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("min_length", 1), ("max_length", max(1, self.min_length)), ("max_ratio", 1)):
            value = getattr(self, name)
            check(value >= least or value == 0, f"{name} is {value}: use 0 for no limit, or at least {least}")
        check(0 < self.script_share <= 1, f"script_share is {self.script_share}: use more than 0, and at most 1")


def describe(split: str, dropped: Dropped) -> str:
    """Return a sentence with the number of lines left out, by reason."""
    each = ", ".join(f"{count} {reason}" for reason, (count, _) in dropped.items())
    return f"left out of {split}: {sum(count for count, _ in dropped.values())} lines ({each})"


class Filter:
    """Filters a text: `keep` is called with each block of its pairs, then `finish`."""

    def __init__(self, cfg: FilterConfig, sides: Sequence[int], folder: Path | None) -> None:
        """Check the `sides` that have text: 0 for the source, 1 for the target. A temporary file is in `folder`.

        UserError: a library is missing, does not know a language, or the file cannot be written, as also in `keep`.
        """
        self._cfg, self._sides, self._found = cfg, sides, Dropped()
        self._count, self._kept, self._place = 0, [np.zeros(0, bool)], folder or tempfile.gettempdir()
        self._shares = {side: _shares_of(cfg.scripts[side]) for side in sides if cfg.scripts[side]}
        self._others = {side: _other_than(cfg.languages[side]) for side in sides if cfg.languages[side]}
        self._kinds = [kind for kind in ("pairs", "sources", "targets") if kind in cfg.drop_repeated]
        with writing(self._place, "choose another data.cache_dir or TMPDIR"):
            Path(self._place).mkdir(parents=True, exist_ok=True)
            self._hashes = tempfile.TemporaryFile(dir=self._place)  # noqa: SIM115
        weakref.finalize(self, self._hashes.close)

    def keep(self, pairs: Sequence[tuple[str | None, str | None]], tag: str = "") -> list[tuple[str, str]]:
        """Return the pairs that pass all checks except those for repetitions. None is a damaged line.

        A source repeats another if it will get the same tag.
        """
        given = [(src or "", tgt or "") for src, tgt in pairs]
        texts = [[visible(line).strip() for line in side] for side in zip(*given, strict=True)]
        damaged, left = np.array([None in pair for pair in pairs]), np.ones(len(pairs), bool)
        for reason, wrong in itertools.chain([("damaged", damaged)], self._checks(texts, left)):
            self._note(reason, left & wrong, lambda i: (self._count + i, *given[i]))
            left &= ~wrong
        src, tgt = (itertools.compress(side, left) for side in texts)
        kept = {"sources": [f"{tag} {text}" for text in src], "targets": [*tgt]}
        kept["pairs"] = ["\n".join(pair) for pair in zip(*kept.values(), strict=True)] if self._kinds else []
        hashes = [[xxhash.xxh3_64_intdigest(text.encode()) for text in kept[kind]] for kind in self._kinds]
        with writing(self._place, "choose another data.cache_dir or TMPDIR"):
            self._hashes.write(np.array(hashes, "<u8").T.tobytes())
            self._hashes.flush()
        self._kept.append(left)
        self._count += len(pairs)
        return [*itertools.compress(given, left)]

    def _checks(self, texts: Sequence[Sequence[str]], left: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each reason in order, and the pairs it holds for, [n] bool. Pairs that are not `left` may be wrong."""
        cfg = self._cfg
        size: Callable[[str], int] = len if cfg.unit == "characters" else lambda text: len(text.split())
        if cfg.min_length or cfg.max_length or cfg.max_ratio:
            lengths = np.array([[*map(size, texts[side])] for side in self._sides])
            yield "too short", lengths.min(0) < cfg.min_length
            yield "too long", lengths.max(0) > (cfg.max_length or np.inf)
            with np.errstate(divide="ignore", invalid="ignore"):  # infinite for an empty side, NaN for two
                yield "of different lengths", lengths.max(0) / lengths.min(0) > (cfg.max_ratio or np.inf)
        if cfg.drop_identical:
            yield "with identical sides", np.array([src == tgt for src, tgt in zip(*texts, strict=True)])
        if self._shares:
            yield (
                "in another script",
                np.any([f(texts[side]) < cfg.script_share for side, f in self._shares.items()], 0),
            )
        if self._others:
            pairs = ((other, zip(texts[side], left, strict=True)) for side, other in self._others.items())
            yield "in another language", np.any([[x and other(text) for text, x in side] for other, side in pairs], 0)

    def _note(self, reason: str, wrong: np.ndarray, pair: Callable[[int], tuple[int, str, str]]) -> None:
        """Count pairs that are left out, [n] bool, and keep the first examples: `pair` gives the one with an index."""
        if wrong.any():
            count, examples = self._found.get(reason, (0, ()))
            more = map(pair, np.flatnonzero(wrong)[: _EXAMPLES - len(examples)].tolist())
            self._found[reason] = count + int(wrong.sum()), (*examples, *more)

    def finish(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[np.ndarray, np.ndarray | None, Dropped]:
        """Check the n pairs that `keep` returned for repetitions.

        Returns:
          Which of them stay, [n] bool; their positions in the whole text, None for all of it; what was left out.
        """
        rows = np.arange(self._count, dtype=np.int32 if self._count < 2**31 else np.int64)[np.concatenate(self._kept)]
        left = np.ones(len(rows), bool)
        for number, kind in enumerate(self._kinds if len(rows) else ()):
            hashes = np.memmap(self._hashes, mode="r").reshape(len(rows), -1, 8)[:, number]
            again = repeated(hashes, left)
            self._note(f"repeated {kind}", again, lambda i: (int(rows[i]), src[i], tgt[i]))
            left &= ~again
        return left, rows[left] if self._found else None, self._found


def repeated(hashes: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return which hashes, [n, 8] bytes, of those `left`, [n] bool, are not the first of their kind, [n] bool.

    Those that end alike are compared at once, so that this takes little memory beside a few bytes for each.
    """
    found, width, ends = np.zeros(len(hashes), bool), max(1, 256 * _PART // len(hashes)), hashes[:, 7].copy()
    for first in range(0, 256, width):
        here = np.flatnonzero(left & (ends >= first) & (ends < first + width))
        values = hashes[here].view("<u8")[:, 0]
        order = np.argsort(values, kind="stable")  # the first stays first
        found[here[order[1:][values[order[1:]] == values[order[:-1]]]]] = True
    return found


def _shares_of(scripts: Collection[str]) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function: n texts -> the share of the letters of each that are in these scripts, NaN for none, [n]."""
    kinds = np.zeros(0x110000, np.uint8)  # of each character: 0 not seen yet, 1 no letter, 2 a letter, 3 of the scripts

    def shares(texts: Sequence[str]) -> np.ndarray:
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        for letter in map(chr, np.unique(codes[kinds[codes] == 0])):
            kinds[ord(letter)] = 1 + letter.isalpha() * (1 + (script_of(letter) in scripts))
        found, ends = kinds[codes], np.cumsum([0, *map(len, texts)])
        letters, own = (np.diff(np.append(0, np.cumsum(found >= least))[ends]) for least in (2, 3))
        with np.errstate(invalid="ignore"):
            return own / letters

    return shares


def script_of(letter: str) -> str:
    """Return the script of a letter, with which its name in Unicode begins but for a few rare ones."""
    name = unicodedata.name(letter, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    script = re.split("[ -]", name, maxsplit=1)[0].title()
    return "Han" if script in ("Cjk", "Ideographic") else script


def _other_than(language: str) -> Callable[[str], bool]:
    """Return a function: text -> whether it is in another language. UserError if the library does not know this one."""
    check_installed("data.filters by language", ["py3langid"], "language-id")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=0.5)
    near = did_you_mean(language, model.labels)
    check(language in model.labels, f"data.filters: py3langid does not know the language '{language}'{near}")
    return lambda text: any(map(str.isalpha, text)) and model.classify(text)[0] not in ("und", language)
