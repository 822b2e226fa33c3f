"""From a configuration to tokenised text, vocabularies and batch shapes."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.checksums import DamagedError, checksum, parsed, seal, unseal
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.files import content, replace_file
from convs2s_jax.data import corpora, parallel_text, plan, segmentation, tokens_on_disk, unknown, vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.shapes import Shape, choose_shapes, rounded
from convs2s_jax.data.symbols import Labels, Vocabulary
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics import scoring
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Split, fingerprint, fingerprint_of_text, held_out_shapes
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.schedule import PlateauConfig

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
            if self._files not in (None, corpora.checksums(self._cfg, "train")):
                raise UserError(
                    "the files of the training split changed while they were read: start again when they are complete"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The constants of a run: configuration, data, vocabularies and shapes.

    Attributes:
      cfg: the configuration.
      workdir: folder of the run.
      vocabularies: of both sides.
      train: tokenised training data.
      valid: tokenised validation data, or None.
      test: tokenised test data, or None.
      rows: indices of the training pairs in use.
      shapes: of training batches.
      first_uses: shapes used in the first epoch, in the order of their first use.
      held_out_shapes: of batches of the validation and the test set.
      batches: number of batches in an epoch (some epochs have one more or less).
      used: how many training examples are used and skipped, in words.
      batching: the batches, their shapes and padding, in words.
      fingerprint: checksum of the tokenised training data.
      held_out: checksums of the lines of "valid" and "test"; None for a missing split.
    """

    cfg: Config
    workdir: Path
    vocabularies: Vocabularies
    train: Split
    valid: Split | None
    test: Split | None
    rows: np.ndarray
    shapes: tuple[Shape, ...]
    first_uses: tuple[Shape, ...]
    held_out_shapes: tuple[Shape, ...]
    batches: int
    used: str
    batching: str
    fingerprint: int
    held_out: Mapping[str, str | None]

    @property
    def sizes(self) -> dict[str, int]:
        """Entries of the vocabularies by side, "source" and "target", special symbols included."""
        return {"source": self.vocabularies.src.size, "target": self.vocabularies.tgt.size}


def prepare(cfg: Config, workdir: Path, tell: Tell, *, learn: bool = True) -> Run:
    """Read the corpus, learn or load vocabularies, tokenise, choose shapes.

    Args:
      cfg: configuration.
      workdir: of the run.
      tell: called with sentences for the user.
      learn: whether to learn vocabularies if no checkpoint needs those in the workdir; False if another process has
        done so. They are in the workdir's cache until the run starts.

    Raises:
      UserError: the corpus cannot be read, none of it is usable for training, or the workdir's vocabulary is missing
        although checkpoints need it.
    """
    _check(cfg, workdir)
    text = TrainingText(cfg.data, task=type(cfg.model).__name__)
    held_out = text.valid, parallel_text.read(cfg.data, "test", optional=True)
    _check_validation(cfg, text.valid, tell)
    _advise_on_scores(cfg, held_out, tell)
    made = vocabularies_of(cfg, workdir, text, tell, learn=learn)
    fingerprints = {one.name: fingerprint_of_text(one) for one in held_out}
    train = _training_split(cfg, workdir, made, text, held_out, list(fingerprints.values()), tell)
    valid, test = (tokenize(cfg, workdir, made, one, tell) if len(one) else None for one in held_out)
    scored = [split for split in (valid, test) if split is not None]
    for split in scored:
        if said := _unknown_in(split, made):
            tell(said)
        _tell_of_cuts(cfg, split, tell)
    if cfg.data.batch.cut_source:
        most = longest(cfg)[0]
        tell(f"sources truncated to {most} tokens: {int(np.sum(train.lengths()[0] > most))}")
        train = dataclasses.replace(train, longest=most)
    rows, used = usable_rows(cfg, train, tell)
    chosen, example, batching = _first_epoch(cfg, train, made, rows, tell)
    return Run(
        cfg=cfg,
        workdir=workdir,
        vocabularies=made,
        train=train,
        valid=valid,
        test=test,
        rows=rows,
        shapes=chosen,
        first_uses=example.first_uses(),
        held_out_shapes=held_out_shapes(cfg.model, scored, tokens=cfg.data.batch.tokens),
        batches=len(example.batches),
        used=used,
        batching=batching,
        fingerprint=fingerprint(train.src, train.tgt),
        held_out=fingerprints,
    )


def _check(cfg: Config, workdir: Path) -> None:
    """Raise UserError for whatever can be checked before any text is read.

    A plateau may not start below its minimum: the first validation without progress would be the last. The record
    itself does not check this, since plans describe schedules of any values.
    """
    scoring.check_metrics(cfg.training.metrics, cfg.training.bleu_tokenize)
    if run_folder.has_checkpoint(workdir):
        return
    corpora.check_places(cfg.data)
    schedule = cfg.training.schedule
    if isinstance(schedule, PlateauConfig) and schedule.minimum > schedule.rate:
        raise UserError(
            f"training.schedule.minimum is {schedule.minimum:g}, the rate below which training ends: use the initial "
            f"rate, {schedule.rate:g}, or less"
        )


def _check_validation(cfg: Config, valid: ParallelText, tell: Tell) -> None:
    """Raise UserError for settings that require a validation set if there is none; report what was held out."""
    if not len(valid):
        if isinstance(schedule := cfg.training.schedule, PlateauConfig):
            other = f"--config.training.schedule=\"{{'kind': 'inverse_sqrt', 'rate': {schedule.rate}}}\""
            raise UserError(
                "training.schedule.kind is 'plateau', but there is no validation set: set data.hold_out=0.05, or use "
                f"another kind, as with {other}"
            )
        for name, unset in (("patience", None), ("best_metric", LOSS)):
            if (value := getattr(cfg.training, name)) != unset:
                raise UserError(
                    f"training.{name} is {value}, but there is no validation set: leave it out, or set "
                    "data.hold_out=0.05"
                )
        tell("there is no validation set: the last checkpoint is used")
    if valid.rows is not None:
        copies = f"; {valid.copies} copies of them are left out" if valid.copies else ""
        tell(f"held out for validation: {len(valid)} {cfg.examples}{copies}")


def _advise_on_scores(cfg: Config, held_out: Sequence[ParallelText], tell: Tell) -> None:
    """Report a tokeniser of BLEU that does not fit the validation set, or the test set if there is no other."""
    references = next((text.tgt for text in held_out if len(text)), ())
    metrics, tokenize = cfg.training.metrics, cfg.training.bleu_tokenize
    hint = scoring.hint(references, metrics=metrics, bleu_tokenize=tokenize, flag="--config.training.bleu_tokenize")
    if hint and cfg.training.validate_bleu:
        tell(hint)


def _training_split(
    cfg: Config,
    workdir: Path,
    made: Vocabularies,
    text: TrainingText,
    held_out: tuple[ParallelText, ParallelText],
    fingerprints: list[str | None],
    tell: Tell,
) -> Split:
    """Return the training split, from the cache of an earlier start, or read and tokenised.

    Its lines are dropped, unless each epoch resegments them.
    """
    depends = [*run_folder.fingerprints(made), *fingerprints]
    record = text.record(run_folder.cache(workdir, cfg.data.cache_dir), depends)
    found = text.known(record)
    if found is None:
        lines = text.lines()
        train = tokenize(cfg, workdir, made, lines, tell)
        shared = tuple(parallel_text.shared_pairs(lines, *held_out))
        kept = train if cfg.data.subword_sampling else dataclasses.replace(train, text=lines.without_lines())
        found = KnownText(kept, shared, _unknown_in(train, made))
        remember(record, found)
        text.forget()
    for held, count in zip(held_out, found.shared, strict=True):
        if count:
            tell(
                f"{held.name}: {count} of {len(held)} {cfg.examples} are also in the training text, so the loss and "
                "the scores are better than on unseen text"
            )
    if found.unknown:
        tell(found.unknown)
    return found.train


def _first_epoch(
    cfg: Config, train: Split, made: Vocabularies, rows: np.ndarray, tell: Tell
) -> tuple[tuple[Shape, ...], plan.Plan, str]:
    """The shapes of training batches, the plan of the first epoch, and both in words."""
    first = segmented(cfg.data, train, made, seed=cfg.seed, epoch=1, longest=longest(cfg))
    if cfg.data.subword_sampling:
        tell(
            f"data.subword_sampling is {cfg.data.subword_sampling}: each epoch samples a new segmentation of the "
            f"training text; the first has {_tokens(first, rows)} tokens, the best segmentation {_tokens(train, rows)}"
        )
    src, tgt = first.lengths()
    larger = [np.maximum(*pair) for pair in zip(train.lengths(), (src, tgt), strict=True)]
    tight, chosen = batch_shapes(cfg, *(side[rows] for side in larger))
    example = plan.plan_epoch(src, tgt, rows, chosen, seed=cfg.seed, epoch=1)
    without = ""
    if chosen != tight:
        padding = plan.plan_epoch(src, tgt, rows, tight, seed=cfg.seed, epoch=1).padding
        without = f" ({100 * padding:.1f} % without row_multiple and length_multiple)"
    batching = (
        f"{len(example.batches)} an epoch in {counted(len(chosen), 'shape')}, "
        f"{100 * example.padding:.1f} % padding{without}; {_listed(cfg, chosen)}"
    )
    tell(f"batches: {batching}")
    return chosen, example, batching


def _listed(cfg: Config, shapes: Sequence[Shape]) -> str:
    """List shapes after the meaning of their numbers, as in "lines x tokens: 64 x 9, 32 x 17"."""
    if cfg.examples == "pairs":
        return "pairs x (source, target) tokens: " + ", ".join(map(str, shapes))
    lengths = [(s.rows, *by_side(cfg, s.src, s.tgt).values()) for s in shapes]
    return f"{cfg.examples} x tokens: " + ", ".join(f"{rows} x {length}" for rows, length in lengths)


def _tokens(split: Split, rows: np.ndarray) -> int:
    """Number of tokens of these pairs, both sides, end symbols included."""
    return sum(int(side[rows].sum()) for side in split.lengths())


def _unknown_in(split: Split, made: Vocabularies) -> str:
    """Report how many tokens of each side are unknown. A language model's source has none, and labels are all known."""
    text = split.text
    sides = (split.src, text.src, made.src, "source"), (split.tgt, text.tgt, made.tgt, "target")
    counted = [side for side in sides if len(side[0].tokens) and not isinstance(side[2].segmenter, Labels)]
    shares = [
        unknown.describe(tokens, lines, vocabulary, f"{side} tokens" if len(counted) > 1 else "tokens")
        for tokens, lines, vocabulary, side in counted
    ]
    return f"unknown in {text.name}: {', '.join(shares)}" if shares else ""


def _tell_of_cuts(cfg: Config, split: Split, tell: Tell) -> None:
    """Report how many pairs of a split a validation truncates: their loss is not that of the whole lines."""
    src, tgt = split.lengths()
    cut = int(np.sum((src > cfg.model.max_source) | (tgt > cfg.model.max_target)))
    if cut:
        tell(
            f"{split.text.name}: {cut} of {len(src)} {cfg.examples} exceed the model's positions, "
            f"{limits(cfg, cfg.model.max_source, cfg.model.max_target)}; their loss covers only the beginning"
        )


def tokenize(cfg: Config, workdir: Path, made: Vocabularies, text: ParallelText, tell: Tell) -> Split:
    """Return the token ids of a split, from the cache if an earlier run left them there intact."""
    folder = run_folder.cache(workdir, cfg.data.cache_dir)
    split = Split(
        text=text,
        src=tokens_on_disk.tokenize(text.src, made.src, folder, f"{text.name}.src", tell=tell),
        tgt=tokens_on_disk.tokenize(text.tgt, made.tgt, folder, f"{text.name}.tgt", tell=tell),
    )
    task_of(cfg.model).check_targets(split, made)
    return split


def vocabularies_of(cfg: Config, workdir: Path, text: TrainingText, tell: Tell, *, learn: bool) -> Vocabularies:
    """Load, copy or learn the vocabularies of a run. Before its first checkpoint they are in its cache.

    Args:
      cfg: configuration.
      workdir: of the run.
      text: only read if vocabularies are learned.
      tell: called with sentences for the user.
      learn: False if another process has done so.

    Raises:
      UserError: the workdir's vocabulary is missing although checkpoints need it, or none can be learned.
    """
    made = _of_run(cfg, workdir, text, tell, learn=learn)
    if isinstance(cfg.model, ModelConfig) and cfg.model.share_embeddings and not made.joint:
        raise UserError(
            "model.share_embeddings is True, but the two sides have different vocabularies: use a joint one"
        )
    sampled = cfg.data.subword_sampling
    if sampled and not any(side.segmenter.divides_words for side in (made.src, made.tgt)):
        raise UserError(
            f"data.subword_sampling is {sampled}, but the vocabularies consist of whole words: set it to 0, or "
            "data.vocabulary.kind to bpe or unigram"
        )
    return made


def learned_folder(workdir: Path, made: Vocabularies) -> Path | None:
    """Return the folder of these vocabularies in the cache of a run that has no checkpoint; None if it has one."""
    place = run_folder.learned_vocabularies(workdir)
    for folder in [] if run_folder.has_checkpoint(workdir) or not place.is_dir() else sorted(place.iterdir()):
        with contextlib.suppress(UserError):
            if run_folder.fingerprints(vocabulary.load(folder)) == run_folder.fingerprints(made):
                return folder
    return None


def _of_run(cfg: Config, workdir: Path, text: TrainingText, tell: Tell, *, learn: bool) -> Vocabularies:
    folder = run_folder.vocabulary(workdir)
    if run_folder.has_checkpoint(workdir):
        if not folder.is_dir():
            raise UserError(f"{folder} is missing, but checkpoints here need it: restore it, or use another workdir")
        return vocabulary.load(folder)
    learned = run_folder.learned_vocabularies(workdir) / _origin(cfg, text)
    if not learn:
        if not learned.is_dir():
            raise UserError(
                "this process has a different training corpus from process 0, which stored the vocabularies of its "
                "own: all must be the same"
            )
        return vocabulary.load(learned)
    if cfg.training.finetune_from:
        made = finetuning.vocabularies(cfg, tell)
    elif place := cfg.data.vocabulary.dir:
        made = vocabulary.load_from(place)
        if other := finetuning.corpus_beside(place):
            finetuning.compare_sides(other, cfg.data, f"data.vocabulary.dir={place}", joint=made.joint, tell=tell)
    else:
        if learned.is_dir():
            try:
                made = vocabulary.load(learned)
                tell("reusing the vocabularies that an earlier start learned")
                return made
            except UserError:
                tell(f"{learned} is damaged and will be rewritten")
        tell("learning the vocabularies from the training text")
        made = task_of(cfg.model).build_vocabularies(cfg.data, text.lines(), cfg.seed)
    vocabulary.save(made, learned)
    return made


def _origin(cfg: Config, text: TrainingText) -> str:
    """Return a checksum of everything that learned vocabularies depend on, as the name of their folder."""
    if cfg.data.vocabulary.dir or cfg.training.finetune_from:
        return "given"
    settings = {
        "data.vocabulary": to_dict(cfg.data.vocabulary),
        "one_sided": cfg.data.one_sided,
        "seed": cfg.seed,
        "task": type(cfg.model).__name__,
        "sentencepiece": version("sentencepiece"),
        "text": text.origin(),
    }
    return checksum(json.dumps(settings, sort_keys=True).encode())


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
    tight = choose_shapes(src, tgt, tokens=batch.tokens, count=batch.shapes)
    most = (1 if cfg.data.one_sided else max_source, max_target)
    return tight, rounded(tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=most)


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
