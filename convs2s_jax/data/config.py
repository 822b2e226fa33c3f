"""The configuration of data: the corpus, its vocabularies, its batches."""

import dataclasses
from typing import Literal

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.data.cldr import CldrConfig

# SentencePiece's names; all but "identity" change characters, so decoding gives back the normalised text.
NORMALIZATIONS = ("identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf")


@record
class SplitFiles:
    """Parallel files of each split as (source file, target file) pairs; the pairs of a split are joined in order.

    Attributes:
      train: pairs of files to train on; empty for those of `data.dir`.
      valid: pairs of files for validation; empty for those of `data.dir`.
      test: pairs of files for the final test; empty for those of `data.dir`.
    """

    train: tuple[tuple[str, str], ...] = ()
    valid: tuple[tuple[str, str], ...] = ()
    test: tuple[tuple[str, str], ...] = ()


@record
class VocabularyConfig:
    """How the vocabularies are learned from the training text.

    Attributes:
      kind: subword units made by merging pairs (bpe) or by a unigram language model (unigram), or plain words between
        spaces (words).
      dir: folder with the vocabularies of another run, WORKDIR/vocab, which are used as they are; the other fields are
        then not read. Empty: they are learned.
      src_size: entries of the source vocabulary, its four special symbols included; words and unigram may end up with
        fewer.
      tgt_size: entries of the target vocabulary, likewise.
      joint: one vocabulary of src_size for both sides, learned from both; tgt_size is not read.
      sample: most lines of each side to learn from; where there are more, they are drawn at random by the run's seed.
      min_count: words only: words that are rarer become <unk>.
      split_digits: subwords only: every digit is a unit of its own.
      character_coverage: subwords only: this share of the text's characters is covered, the rarest others become <unk>.
      normalization: subwords only: a SentencePiece normalisation (identity, nfkc, nfkc_cf, nmt_nfkc, nmt_nfkc_cf);
        identity leaves every character as it is.
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
    normalization: str = "identity"

    def __post_init__(self) -> None:
        for name, size in (("src_size", self.src_size), ("tgt_size", self.tgt_size)):
            check(size > 4, f"{name} is {size}: four entries are special symbols; use 5 or more")
        check(self.sample >= 1, f"sample is {self.sample}: a vocabulary is learned from at least 1 line")
        check(self.min_count >= 1, f"min_count is {self.min_count}: every word occurs at least once; use 1 or more")
        check(
            0.9 <= self.character_coverage <= 1,
            f"character_coverage is {self.character_coverage}: it is a part of the text, from 0.9 to 1",
        )
        if self.normalization not in NORMALIZATIONS:
            hint = did_you_mean(self.normalization, NORMALIZATIONS)
            raise UserError(f"normalization is '{self.normalization}'{hint}")


@record
class BatchConfig:
    """How pairs of sentences are grouped into batches of few shapes.

    Attributes:
      tokens: budget of a batch: rows * max(S, T) is at most this; a longer pair is a batch of its own.
      shapes: most (S, T) rectangles; each is compiled once.
      accumulate: batches whose gradients are summed before one update.
      max_length: longest side of a training pair in tokens, its end symbol included; longer pairs are skipped and
        counted. fairseq has room for 1024 positions and keeps two of them.
      cut_source: cut longer sources to max_length in training (and count them) instead of skipping the pair, as is done
        for summaries; targets are never cut.
    """

    tokens: int = 4000
    shapes: int = 12
    accumulate: int = 1
    max_length: int = 1022
    cut_source: bool = False

    def __post_init__(self) -> None:
        check(self.tokens >= 2, f"tokens is {self.tokens}: a batch holds a token and its end symbol; use 2 or more")
        check(self.shapes >= 1, f"shapes is {self.shapes}: a batch needs a shape; use 1 or more")
        check(self.accumulate >= 1, f"accumulate is {self.accumulate}: an update needs a batch; use 1 or more")
        check(
            self.max_length >= 2,
            f"max_length is {self.max_length}: it counts a token and its end symbol; use 2 or more",
        )


@record
class DataConfig:
    """A parallel corpus, its vocabularies and its batches.

    Attributes:
      corpus: "files"; "cldr" (phrases made from Unicode CLDR, needs no files); "tfds:NAME" (TensorFlow Datasets). With
        labels as the target side also "tsv" (DIR/{train,valid,test}.tsv, plain or with .gz: a label, TAB and a text on
        each line) and "cldr_kinds" (phrases in the locale `src`; the label is the kind of phrase).
      src: the source side: suffix of file names, CLDR locale, or name of a feature. Without it the corpus is the target
        side alone, for a language model: sources are empty lines. "tsv" does not need it.
      tgt: the target side, likewise.
      dir: folder with {train,valid,test}.{src,tgt}, plain or with .gz, for the splits that `files` does not list.
      files: files of each split by name, in place of `dir`.
      cldr: sizes of the built-in corpus.
      hold_out: where a corpus has no split "valid", this share of train is held out for it, the same lines for every
        seed; 0 trains without validation. None: a corpus must have the split.
      tfds_dir: where TensorFlow Datasets keeps its data; empty: its own default, ~/tensorflow_datasets.
      cache_dir: where tokenised text is kept; empty: inside the workdir.
      vocabulary: how the vocabularies are learned.
      batch: how batches are made.
    """

    corpus: str = "files"
    src: str = ""
    tgt: str = ""
    dir: str = ""
    files: SplitFiles = dataclasses.field(default_factory=SplitFiles)
    cldr: CldrConfig = dataclasses.field(default_factory=CldrConfig)
    hold_out: float | None = None
    tfds_dir: str = ""
    cache_dir: str = ""
    vocabulary: VocabularyConfig = dataclasses.field(default_factory=VocabularyConfig)
    batch: BatchConfig = dataclasses.field(default_factory=BatchConfig)

    def __post_init__(self) -> None:
        kind, _, name = self.corpus.partition(":")
        if kind not in CORPORA:
            raise UserError(f"corpus is '{self.corpus}'{did_you_mean(kind, CORPORA)}")
        check(
            bool(name) == (kind == "tfds"),
            f"corpus is '{self.corpus}': write 'files', 'tsv', 'cldr', 'cldr_kinds', or 'tfds:NAME' with a name",
        )
        check(
            self.hold_out is None or 0 <= self.hold_out <= 0.5,
            f"hold_out is {self.hold_out}: a share of train, from 0 (no validation) to 0.5",
        )
        for side in SIDES[kind][-1:]:
            check(getattr(self, side) != "", f"{side} is not given: name the {CORPORA[kind]}, as in {side}='de'")
        check(
            self.src != self.tgt or self.files != SplitFiles() or len(SIDES[kind]) < 2,
            f"src and tgt are both '{self.src}': the two sides need different names, or files of their own in 'files'",
        )

    @property
    def labelled(self) -> bool:
        """Whether its target side are labels."""
        return "tgt" not in SIDES[self.corpus.partition(":")[0]]

    @property
    def one_sided(self) -> bool:
        """Whether it is the target side alone."""
        return not self.src and "src" in SIDES[self.corpus.partition(":")[0]]


# What `src` and `tgt` name in each kind of corpus.
CORPORA = {
    "files": "suffix of its files",
    "tsv": "",
    "cldr": "locale",
    "cldr_kinds": "locale",
    "tfds": "feature of the data set",
}
# Which of the two it names; the last one has to be given.
SIDES = {
    "files": ("src", "tgt"),
    "tsv": (),
    "cldr": ("src", "tgt"),
    "cldr_kinds": ("src",),
    "tfds": ("src", "tgt"),
}
