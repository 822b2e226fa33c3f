"""Data configuration: the corpus, its vocabularies and its batches."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.places import check_place
from convs2s_jax.core.text import Normalization, visible
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data.cldr import CldrConfig
from convs2s_jax.data.filters import FilterConfig

Files = tuple[tuple[str, str] | str, ...]
"""Text files as (source, target), and tables."""


class Corpus(NamedTuple):
    """A kind of corpus.

    Attributes:
      sides: those that it has, from "src" and "tgt"; the last one is required.
      meaning: of the sides.
      places: fields of `DataConfig` that specify its text, from "dir" and "files".
    """

    sides: tuple[str, ...]
    meaning: str = ""
    places: tuple[str, ...] = ()


CORPORA: Mapping[str, Corpus] = {
    "files": Corpus(("src", "tgt"), "suffix of its files", ("dir", "files")),
    "tsv": Corpus((), places=("dir",)),
    "cldr": Corpus(("src", "tgt"), "locale"),
    "cldr_kinds": Corpus(("src",), "locale"),
    "tfds": Corpus(("src", "tgt"), "feature of the data set"),
    "hf": Corpus(("src", "tgt"), "feature of the data set"),
}


@record
class SplitFiles:
    """Files of each split: text files as (source file, target file), and names of tables (docs/data.md).

    Files of a split are concatenated in order. A name may be a pattern with `*`, `?` or `[...]`.

    Attributes:
      train: files to train on; empty: the files in `data.dir`.
      valid: files for validation; empty: the files in `data.dir`.
      test: files for the final test; empty: the files in `data.dir`.
    """

    train: Files = ()
    valid: Files = ()
    test: Files = ()

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            check_place(name, getattr(self, name), stores=True)


@record
class MixturePart:
    """A part of a mixture of corpora.

    Attributes:
      files: its files, as in `files.train`.
      weight: its share of each epoch, relative to other weights.
      tag: text before each source line, such as "<bt>"; it is one unit, like `vocabulary.symbols`.
      schedule: (update, weight): its weight from this update on, counted from 1.
    """

    files: Files
    weight: float = 1.0
    tag: str = ""
    schedule: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_place("files", self.files, stores=True)
        check(len(self.files) > 0, "files is empty: list the files of this part, or remove it")
        if self.tag:
            _check_symbol(f"tag is '{self.tag}'", self.tag)
        for weight in (self.weight, *(weight for _, weight in self.schedule)):
            check(0 <= weight <= 1e9, f"the weight {weight} is not between 0 and 1e9")
        steps = [1, *(step for step, _ in self.schedule)]
        ascending = steps == sorted({*steps})
        check(ascending, f"schedule changes the weight at updates {steps[1:]}: use ascending numbers from 2 on")


@record
class VocabularyConfig:
    """How the vocabularies are learned from the training text.

    Attributes:
      kind: subword units from byte-pair encoding (bpe) or a unigram language model (unigram), or words separated by
        white space (words).
      dir: folder with the vocabularies of another run (WORKDIR/vocab) or with your own (docs/data.md), or its address
        in an object store. They are used unchanged, and the other fields are ignored. Empty: learn the vocabularies.
      src_size: size of the source vocabulary, including the four special symbols. With words and unigram the learned
        vocabulary may be smaller.
      tgt_size: size of the target vocabulary, likewise.
      joint: learn one vocabulary of src_size from both sides and share it; tgt_size is ignored.
      sample: maximum number of lines per side to learn from. Longer text is sampled at random with the run's seed.
      min_count: words only: words that occur less often become <unk>.
      split_digits: subwords only: make every digit a separate unit.
      character_coverage: subwords only: fraction of the text's characters to cover, between 0.98 and 1; the rarest
        others become <unk>.
      normalization: subwords only: a SentencePiece normalisation. All but identity change characters, so decoding
        returns the normalised text.
      symbols: subwords only: texts that are always one unit, wherever they occur, such as tags of languages or domains.
    """

    kind: Literal["bpe", "unigram", "words"] = "bpe"
    dir: str = ""
    src_size: int = 10_000
    tgt_size: int = 10_000
    joint: bool = False
    sample: int = 1_000_000
    min_count: int = 2
    split_digits: bool = False
    character_coverage: float = 1.0
    normalization: Literal["identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"] = "identity"
    symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_place("dir", self.dir, stores=True)
        for name in ("src_size", "tgt_size"):
            size = getattr(self, name)
            check(size > 4, f"{name} is {size}: four entries are special symbols; use 5 or more")
        check(self.sample >= 1, f"sample is {self.sample}: learning a vocabulary requires a line; use 1 or more")
        check(self.min_count >= 1, f"min_count is {self.min_count}: every word occurs at least once; use 1 or more")
        learns_subwords = self.kind != "words" and not self.dir  # other workdirs may have a smaller, unused value
        check(
            (0.98 if learns_subwords else 0.9) <= self.character_coverage <= 1,
            f"character_coverage is {self.character_coverage}: it is a fraction of the characters; SentencePiece "
            "accepts values between 0.98 and 1",
        )
        for symbol in self.symbols:
            _check_symbol(f"symbols contains '{symbol}'", symbol)
            check(self.symbols.count(symbol) == 1, f"symbols contains '{symbol}' twice; list it once")


def _check_symbol(what: str, symbol: str) -> None:
    """Raise UserError unless a text can be a unit of sub-word vocabularies."""
    check(
        symbol not in SPECIAL and visible(symbol).split() == [symbol] and "\u2581" not in symbol,
        f"{what}: use text without white space, invisible characters and U+2581, but not {', '.join(SPECIAL)}",
    )


@record
class BatchConfig:
    """How sentence pairs are grouped into batches with a small number of shapes.

    Attributes:
      tokens: token budget of a batch over all devices: rows * max(S, T) is at most this. A longer pair gets a batch of
        its own.
      shapes: maximum number of (S, T) shapes; each is compiled once.
      accumulate: number of batches whose gradients are summed for one update.
      max_length: maximum length of either side of a training pair in tokens, including the end symbol. Longer pairs
        are skipped and counted. fairseq has 1024 positions and reserves two of them.
      cut_source: truncate longer sources to max_length in training (and count them) instead of skipping the pair, as
        is usual in summarisation. Targets are never truncated.
      row_multiple: make the number of rows in a training batch a multiple of this. Batches stay within the token budget
        unless a single multiple already exceeds it.
      length_multiple: round the lengths of training batches up to a multiple of this, up to the model's maximum. TPUs
        compute in tiles of 8 x 128 and pad the rest; whether a multiple is faster was not measured.
    """

    tokens: int = 4000
    shapes: int = 12
    accumulate: int = 1
    max_length: int = 1022
    cut_source: bool = False
    row_multiple: int = 1
    length_multiple: int = 1

    def __post_init__(self) -> None:
        for name, least, most, why in (
            ("row_multiple", 1, 1024, "1 is no rounding"),
            ("length_multiple", 1, 1024, "1 is no rounding"),
            ("tokens", 2, 2**31 - 1, "a batch has at least a token and an end symbol"),
            ("shapes", 1, 256, "each is compiled once, which takes seconds"),
            ("accumulate", 1, 2**31 - 1, "an update needs a batch"),
            ("max_length", 2, 2**31 - 1, "a sentence is at least a token and an end symbol"),
        ):
            value = getattr(self, name)
            check(least <= value <= most, f"{name} is {value}: {why}; use a number between {least} and {most}")
        check(
            self.tokens * self.accumulate < 2**31,
            f"tokens is {self.tokens} and accumulate is {self.accumulate}: an update counts its tokens in 32 bits; "
            f"their product must be at most {2**31 - 1}",
        )


@record
class DataConfig:
    """A parallel corpus, its vocabularies and its batches.

    Attributes:
      corpus: "files"; "cldr" (phrases generated from Unicode CLDR, needs no files); "tfds:NAME" (TensorFlow Datasets);
        "hf:NAME" or "hf:NAME:CONFIG" (Hugging Face).
        For labels as targets also "tsv" (DIR/{train,valid,test}.tsv, optionally .gz; each line is a label, a TAB and a
        text) and "cldr_kinds" (phrases in the locale `src`; the label is the kind of phrase).
      src: the source side: file name suffix, column of a table, CLDR locale, or feature name. If empty, the corpus has
        only a target side, for language models, and sources are empty lines. "tsv" does not need it.
      tgt: the target side, likewise.
      dir: folder with {train,valid,test}.{src,tgt} or .{tsv,jsonl,ndjson,parquet}, optionally compressed, for splits
        not listed in `files`; or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      files: files of each split, instead of `dir`; object store addresses are accepted too.
      mixture: parts of the training text with weights, instead of `files.train` and train in `dir` (docs/data.md).
      skip_damaged: leave out pairs that are not UTF-8, contain NUL or lack a column.
      cldr: sizes of the built-in corpus.
      hold_out: fraction of train to hold out for validation if the corpus has no "valid" split; the lines do not depend
        on the seed, and copies of a held-out pair are dropped from both splits. 0 trains without validation. None: the
        corpus must have the split.
      filters: training pairs to leave out.
      normalize: NFKC or Moses' punctuation (pip install '.[moses]') of all text, also of a trained model.
      tfds_dir: data folder of TensorFlow Datasets; empty: its default, ~/tensorflow_datasets.
      cache_dir: folder for the cache of tokenised text, or the address of one in an object store, from which other
        machines fetch it; empty: inside the workdir.
      workers: processes of this machine that tokenise long text; 0: one for each core.
      vocabulary: how the vocabularies are learned.
      subword_sampling: above 0, sample a new subword segmentation of the training text in each epoch (docs/data.md).
        With bpe this is the probability of leaving out a merge, such as 0.1. With unigram it is the power to which
        probabilities are raised; lower is more random. 0: always use the best segmentation.
      batch: how batches are built.
    """

    corpus: str = "files"
    src: str = ""
    tgt: str = ""
    dir: str = ""
    files: SplitFiles = dataclasses.field(default_factory=SplitFiles)
    mixture: tuple[MixturePart, ...] = ()
    skip_damaged: bool = False
    cldr: CldrConfig = dataclasses.field(default_factory=CldrConfig)
    hold_out: float | None = None
    filters: FilterConfig = dataclasses.field(default_factory=FilterConfig)
    normalize: tuple[Normalization, ...] = ()
    tfds_dir: str = ""
    cache_dir: str = ""
    workers: int = 0
    vocabulary: VocabularyConfig = dataclasses.field(default_factory=VocabularyConfig)
    subword_sampling: float = 0.0
    batch: BatchConfig = dataclasses.field(default_factory=BatchConfig)

    def __post_init__(self) -> None:
        for place in ("dir", "tfds_dir", "cache_dir"):
            check_place(place, getattr(self, place), stores=place != "tfds_dir")
        kind, _, name = self.corpus.partition(":")
        if kind not in CORPORA:
            raise UserError(f"corpus is '{self.corpus}'{did_you_mean(kind, CORPORA)}")
        check(
            bool(name) == (kind in ("tfds", "hf")),
            f"corpus is '{self.corpus}': use 'files', 'tsv', 'cldr', 'cldr_kinds', or 'tfds:NAME' or 'hf:NAME' with a "
            "name",
        )
        check(self.workers >= 0, f"workers is {self.workers}: use 1 or more, or 0 for one for each core")
        check(
            self.hold_out is None or 0 <= self.hold_out <= 0.5,
            f"hold_out is {self.hold_out}: expected a fraction of train between 0 (no validation) and 0.5",
        )
        check(
            0 <= self.subword_sampling <= 1,
            f"subword_sampling is {self.subword_sampling}: use a number between 0 (always the best segmentation) and 1",
        )
        sides, meaning, _ = CORPORA[kind]
        for side in sides[-1:]:
            check(getattr(self, side) != "", f"{side} is missing: set it to the {meaning}, as in {side}='de'")
        check(
            self.src != self.tgt or (kind == "files" and self.files != SplitFiles()) or len(sides) < 2,
            f"src and tgt are both '{self.src}': give the two sides different names, or list their files in 'files'",
        )
        tags = [part.tag for part in self.mixture if part.tag]
        for wrong, rule in (
            (kind != "files", f"corpus is '{self.corpus}': use 'files'"),
            (self.hold_out, f"hold_out is {self.hold_out}: list files for validation, or use 0"),
            (self.files.train, "files.train is set: list its files as a part of the mixture"),
            (self.one_sided and tags, "tags need sources, and src is not set"),
        ):
            check(not (wrong and self.mixture), f"mixture is set, but {rule}")
        for step in (1, *self.changes) if self.mixture else ():
            check(sum(self.weights(step)) > 0, f"mixture has no weight above 0 from update {step} on: raise one")
        symbols = dict.fromkeys([*self.vocabulary.symbols, *tags])
        object.__setattr__(self, "vocabulary", dataclasses.replace(self.vocabulary, symbols=(*symbols,)))

    @property
    def changes(self) -> list[int]:
        """The updates from which on weights of the mixture change, ascending."""
        return sorted({step for part in self.mixture for step, _ in part.schedule})

    def weights(self, step: int) -> list[float]:
        """Return the weights of the mixture at an update, counted from 1."""
        return [[part.weight, *(w for first, w in part.schedule if first <= step)][-1] for part in self.mixture]

    @property
    def corpus_kind(self) -> str:
        """An entry of `CORPORA`."""
        return self.corpus.partition(":")[0]

    @property
    def labelled(self) -> bool:
        """Whether the targets are labels."""
        return "tgt" not in CORPORA[self.corpus_kind].sides

    @property
    def one_sided(self) -> bool:
        """Whether the corpus has only a target side."""
        return not self.src and "src" in CORPORA[self.corpus_kind].sides
