"""From a configuration to tokenised text, vocabularies and batch shapes."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core import local_copies, stores
from convs2s_jax.core.checksums import checksum, parsed, seal, unseal
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import Tell, UserError, counted
from convs2s_jax.core.files import content, writing
from convs2s_jax.core.places import scheme_of
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data import corpora, parallel_text, plan, processes, segmentation, tokens_on_disk, unknown, vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.filters import describe
from convs2s_jax.data.shapes import Shape, choose_shapes, rounded
from convs2s_jax.data.symbols import Labels, Vocabulary
from convs2s_jax.data.tokens_on_disk import Cache, Side, TokenizedText, UnwritableError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics import scoring
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Split, check_unchanged, fingerprint, fingerprint_of_text, held_out_shapes
from convs2s_jax.training.run.reports.records import Facts
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.schedule import PlateauConfig

WITHOUT_LINES = ParallelText((), (), "train")
"""Text of the training split once it is prepared; its lines may fill the memory of the host."""
Files = list[list[str]] | None
"""Checksums of the files of the training split, by which its tokens are looked up in the cache.

None if the corpus has no files, validation is held out from the split, or each epoch resegments it.
"""
_FORMAT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The constants of a run: configuration, data, vocabularies and shapes.

    Attributes:
      cfg: the configuration.
      vocabularies: of both sides.
      train: tokenised training data.
      valid: tokenised validation data, or None.
      test: tokenised test data, or None.
      rows: indices of the training pairs in use.
      shapes: of training batches.
      held_out_shapes: of batches of the validation and the test set.
      facts: what reports tell of the data.
      folder: of the cache, for temporary files.
      fingerprint: checksum of the tokenised training data.
      held_out: checksums of the lines of "valid" and "test"; None for a missing split.
    """

    cfg: Config
    vocabularies: Vocabularies
    train: Split
    valid: Split | None
    test: Split | None
    rows: np.ndarray
    shapes: tuple[Shape, ...]
    held_out_shapes: tuple[Shape, ...]
    facts: Facts
    folder: Path
    fingerprint: int
    held_out: Mapping[str, str | None]

    @property
    def record(self) -> dict[str, Any]:
        """What each checkpoint stores of the data."""
        vocabularies = run_folder.fingerprints(self.vocabularies)
        return {"data": self.fingerprint, "held_out": dict(self.held_out), "vocabularies": vocabularies}

    def check_unchanged(self, workdir: Path, saved: Mapping[str, Any]) -> None:
        """Raise UserError if the data are not those of a checkpoint: its losses and scores would be of other data.

        A checkpoint from another program has no fingerprint of its data (None) and continues with any. Validation or
        test data that did not exist before may be added.
        """
        run_folder.check_vocabularies(workdir, self.vocabularies, saved)
        known = {"train": saved["data"], **saved.get("held_out", {})}
        for name, found in {"train": self.fingerprint, **self.held_out}.items():
            check_unchanged(name, found, known, where=str(workdir), remedy="start over in another workdir")

    def planned(self, split: Split, *, epoch: int, first: int) -> plan.Plan:
        """Return the batches of an epoch; where the weights of a mixture change, it ends.

        `split` is `train`, as this epoch segments it; `first` is the number of its first update, from 1.
        """
        data, seed = self.cfg.data, self.cfg.seed
        rows = plan.mixed(self.rows, self.train.text.parts, data.weights(first), seed=seed, epoch=epoch)
        whole = plan.plan_epoch(*split.lengths(), rows, self.shapes, seed=seed, epoch=epoch)
        most = min(((step - first) * data.batch.accumulate for step in data.changes if step > first), default=None)
        return whole._replace(batches=whole.batches[:most])

    @property
    def sizes(self) -> dict[str, int]:
        """Entries of the vocabularies by side, "source" and "target", special symbols included."""
        return {"source": self.vocabularies.src.size, "target": self.vocabularies.tgt.size}


def prepare(cfg: Config, workdir: Path, tell: Tell, *, share: processes.Share | None = None) -> Run:
    """Read the corpus, learn or load vocabularies, tokenise, choose shapes.

    Training text of tens of millions of pairs takes minutes to read. So it is only read if its tokens or the
    vocabularies learned from it are not in the cache, and is not held in memory (`data.lines`).

    Args:
      cfg: configuration.
      workdir: of the run.
      tell: called with sentences for the user.
      share: does the ranges of the training text (`tokens_on_disk.tokenize`); by default, `data.workers` processes.

    Raises:
      UserError: the corpus cannot be read, none of it is usable for training, or the workdir's vocabulary is missing
        although checkpoints need it.
    """
    scoring.check_metrics(cfg.training.metrics, cfg.training.bleu_tokenize)
    if not run_folder.has_checkpoint(workdir):
        corpora.check_places(cfg.data)
    files = None if cfg.data.subword_sampling else corpora.checksums(cfg.data, "train")
    folder = run_folder.cache(workdir, cfg.data.cache_dir)
    valid_text = None if files is None else parallel_text.read_own_valid(cfg.data, folder)
    whole: ParallelText | None = None
    if valid_text is None:
        files, (whole, valid_text) = None, parallel_text.read_train_and_valid(cfg.data, folder)

    @functools.cache
    def text() -> ParallelText:
        return parallel_text.read(cfg.data, "train", folder=folder) if whole is None else whole

    held_out = valid_text, parallel_text.read(cfg.data, "test", optional=True, folder=folder)
    for one in held_out:
        if one.dropped:
            tell(describe(one.name, one.dropped))
    _check_validation(cfg, valid_text, tell)
    made = _vocabularies(cfg, workdir, text, files, tell)
    fingerprints = {one.name: fingerprint_of_text(one) for one in held_out}
    train = _training_split(cfg, workdir, made, text, files, held_out, [*fingerprints.values()], tell, share)
    valid, test = (tokenize(cfg, workdir, made, one, tell) if len(one) else None for one in held_out)
    scored = [split for split in (valid, test) if split is not None]
    for split in scored:
        _tell_of_held_out(cfg, split, made, tell)
    most = min(cfg.data.batch.max_length, cfg.model.max_source), min(cfg.data.batch.max_length, cfg.model.max_target)
    if cfg.data.batch.cut_source:
        tell(f"sources truncated to {most[0]} tokens: {int(np.sum(train.lengths()[0] > most[0]))}")
        train = dataclasses.replace(train, longest=most[0])
    rows, used = _usable_rows(cfg, train, most, tell)
    _tell_of_mixture(cfg, rows, train.text.parts, tell)
    shapes, batching = _first_epoch(cfg, train, made, rows, most, folder, tell)
    return Run(
        cfg=cfg,
        vocabularies=made,
        train=train,
        valid=valid,
        test=test,
        rows=rows,
        shapes=shapes,
        held_out_shapes=held_out_shapes(cfg.model, scored, tokens=cfg.data.batch.tokens),
        facts=Facts(examples=used, batches=batching, vocabularies=(made.src.size, made.tgt.size)),
        folder=folder,
        fingerprint=fingerprint(train.src, train.tgt),
        held_out=fingerprints,
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
        for name, value, unset in (
            ("patience", cfg.training.patience, None),
            ("best_metric", cfg.training.best_metric, LOSS),
        ):
            rule = "leave it out, or set data.hold_out=0.05"
            check(value == unset, f"training.{name} is {value}, but there is no validation set: {rule}")
        tell("there is no validation set: the last checkpoint is used")
    if valid.is_held_out:
        copies = f"; {valid.copies} copies of them are left out" if valid.copies else ""
        tell(f"held out for validation: {len(valid)} {cfg.examples}{copies}")


def _vocabularies(
    cfg: Config, workdir: Path, text: Callable[[], ParallelText], files: Files, tell: Tell
) -> Vocabularies:
    """Load or learn the vocabularies of a run; see `prepare`. Learned ones are in its cache at first.

    Raises:
      UserError: the workdir's vocabulary is missing although checkpoints need it, or none can be learned.
    """
    if run_folder.has_checkpoint(workdir):
        folder = run_folder.vocabulary(workdir)
        if not folder.is_dir():
            raise UserError(f"{folder} is missing, but checkpoints here need it: restore it, or use another workdir")
        made = vocabulary.load(folder)
    elif place := cfg.data.vocabulary.dir:
        with local_copies.incoming_folder("data.vocabulary.dir", place, lambda name: "/" not in name) as folder:
            made = vocabulary.load(folder)
    elif cfg.training.finetune_from:
        made = finetuning.vocabularies(cfg)
    else:
        made = _learned(cfg, workdir, text, files, tell)
    check(
        made.joint or not (isinstance(cfg.model, ModelConfig) and cfg.model.share_embeddings),
        "model.share_embeddings is True, but the two sides have different vocabularies: use a joint one",
    )
    sampled = cfg.data.subword_sampling
    check(
        not sampled or any(side.segmenter.divides_words for side in (made.src, made.tgt)),
        f"data.subword_sampling is {sampled}, but the vocabularies consist of whole words: set it to 0, or "
        "data.vocabulary.kind to bpe or unigram",
    )
    for part in cfg.data.mixture:
        check(
            UNK not in made.src.encode([part.tag])[0],
            f"data.mixture has the tag '{part.tag}', which the source vocabulary does not contain: use one that it "
            "does, or learn a vocabulary",
        )
    return made


def _learned(cfg: Config, workdir: Path, text: Callable[[], ParallelText], files: Files, tell: Tell) -> Vocabularies:
    """Learn the vocabularies, unless an earlier start left them in the folder of all that they depend on."""
    depends = {
        "data.vocabulary": to_dict(cfg.data.vocabulary),
        "one_sided": cfg.data.one_sided,
        "seed": cfg.seed,
        "task": type(cfg.model).__name__,
        "sentencepiece": version("sentencepiece"),
        "text": fingerprint_of_text(text()) if files is None else files,
    }
    cache, name = _cache(cfg, workdir), checksum(json.dumps(depends, sort_keys=True).encode())
    folder = run_folder.learned_vocabularies(workdir) / name
    if cache.address:
        with contextlib.suppress(OSError):  # they are learned again
            for file in stores.names(cache.address, f"vocab/{name}/"):
                cache.path(file)
    if folder.is_dir():
        try:
            found = vocabulary.load(folder)
            tell(f"reusing the vocabularies that an earlier start learned: {folder}")
            return found
        except UserError:
            tell(f"{folder} is damaged and will be rewritten")
    tell(f"learning the vocabularies from the training text: {folder}")
    made: Vocabularies = task_of(cfg.model).build_vocabularies(cfg.data, text(), cfg.seed)
    vocabulary.save(made, folder)
    if cache.address:
        with writing(cache.address, "choose another data.cache_dir", kind=UnwritableError):
            for path in folder.iterdir():
                cache.keep(f"vocab/{name}/{path.name}")
    return made


def tokenize(
    cfg: Config, workdir: Path, made: Vocabularies, text: ParallelText, tell: Tell, share: processes.Share | None = None
) -> Split:
    """Return the token ids of a split, from the cache if an earlier run left them there intact."""
    sides = Side(f"{text.name}.src", text.src, made.src), Side(f"{text.name}.tgt", text.tgt, made.tgt)
    if share is None:  # other processes take seconds to start
        share = processes.local(cfg.data.workers if len(text) > tokens_on_disk.RANGE else 1)
    src, tgt = tokens_on_disk.tokenize(sides, _cache(cfg, workdir), tell=tell, share=share)
    split = Split(text=text, src=src, tgt=tgt)
    task_of(cfg.model).check_targets(split, made)
    return split


def _cache(cfg: Config, workdir: Path) -> Cache:
    place = cfg.data.cache_dir
    return Cache(run_folder.cache(workdir, place), place if scheme_of(place) else "")


def _training_split(
    cfg: Config,
    workdir: Path,
    made: Vocabularies,
    text: Callable[[], ParallelText],
    files: Files,
    held_out: tuple[ParallelText, ParallelText],
    fingerprints: Sequence[str | None],
    tell: Tell,
    share: processes.Share | None,
) -> Split:
    """Return the training split, from the cache of an earlier start, or read and tokenised.

    Its lines are dropped, unless each epoch resegments them. What is told of it is in the cache too.
    """
    depends = [_FORMAT, files, type(cfg.model).__name__, cfg.data.one_sided, cfg.data.labelled, *fingerprints]
    name = checksum(json.dumps([*depends, *run_folder.fingerprints(made)], sort_keys=True).encode())
    cache, record = _cache(cfg, workdir), f"train-{name}.json"
    if files is not None and (found := _cached(cache, record)):
        train, sentences = found
    else:
        train = tokenize(cfg, workdir, made, text(), tell, share)
        shared = zip(held_out, parallel_text.shared_pairs(text(), *held_out), strict=True)
        sentences = [describe("train", dropped)] if (dropped := text().dropped) else []
        sentences += [
            f"{held.name}: {count} of {len(held)} {cfg.examples} are also in the training text, so the loss and the "
            "scores are better than on unseen text"
            for held, count in shared
            if count
        ]
        sentences += _unknown_in(train, made)
        if not cfg.data.subword_sampling:
            train = dataclasses.replace(train, text=dataclasses.replace(WITHOUT_LINES, parts=train.text.parts))
        if files is not None:
            changed = files != corpora.checksums(cfg.data, "train")
            check(not changed, "a file of the training text changed while it was read: run the same command again")
            kept = {"src": train.src.key, "tgt": train.tgt.key, "parts": train.text.parts, "told": sentences}
            with contextlib.suppress(OSError):  # later starts read the text again
                cache.keep(record, json.dumps(seal(kept)).encode())
    for sentence in sentences:
        tell(sentence)
    return train


def _cached(cache: Cache, record: str) -> tuple[Split, list[str]] | None:
    """The training split without its lines, and what was told of it; None if not all of it is in the cache, intact."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = unseal(parsed(content(cache.path(record))))
        lines = sum(found["parts"])
        sides = [tokens_on_disk.find(cache, f"train.{side}", found[side], lines) for side in ("src", "tgt")]
        if (src := sides[0]) is not None and (tgt := sides[1]) is not None:
            text = dataclasses.replace(WITHOUT_LINES, parts=tuple(found["parts"]))
            return Split(text, src, tgt), found["told"]
    return None


def _tell_of_mixture(cfg: Config, rows: np.ndarray, sizes: Sequence[int], tell: Tell) -> None:
    """Report the parts of a mixture. Raises UserError if none of the lines of a part, of these sizes, are in use."""
    told, weights = list[str](), cfg.data.weights(1)
    counts = np.diff(np.searchsorted(rows, np.cumsum([0, *sizes])))
    for i, (part, weight) in enumerate(zip(cfg.data.mixture, weights, strict=True)):
        place = part.files[0]
        name = f"{place if isinstance(place, str) else place[-1]} {part.tag}".rstrip()
        check(counts[i] > 0, f"data.mixture[{i}]: no training {cfg.examples} of {name} are usable; remove it")
        told.append(f"{name} {counts[i]} {cfg.examples}, {100 * weight / sum(weights):.1f} %")
    told += [f"shares change at updates {', '.join(map(str, cfg.data.changes))}"] * bool(cfg.data.changes)
    if told:
        tell(f"mixture: {'; '.join(told)}")


def _first_epoch(
    cfg: Config, train: Split, made: Vocabularies, rows: np.ndarray, most: tuple[int, int], folder: Path, tell: Tell
) -> tuple[tuple[Shape, ...], str]:
    """The shapes of training batches, and the first epoch in words."""
    batch = cfg.data.batch
    first = segmented(cfg.data, train, made, folder, seed=cfg.seed, epoch=1, longest=most)
    src, tgt = first.lengths()
    larger = [np.maximum(*pair)[rows] for pair in zip(train.lengths(), (src, tgt), strict=True)]
    tight = choose_shapes(*larger, tokens=batch.tokens, count=batch.shapes)
    bounds = (1 if cfg.data.one_sided else most[0], most[1])
    shapes = rounded(tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=bounds)
    rows = plan.mixed(rows, train.text.parts, cfg.data.weights(1), seed=cfg.seed, epoch=1)
    example = plan.plan_all(src, tgt, shapes, rows)
    padding = 100 * plan.padding(src, tgt, rows, example)
    batching = (
        f"{len(example.batches)} an epoch in {counted(len(shapes), 'shape')}, {padding:.1f} % padding; "
        f"{cfg.examples} x (source, target) tokens: {', '.join(map(str, shapes))}"
    )
    tell(f"batches: {batching}")
    return shapes, batching


def _unknown_in(split: Split, made: Vocabularies) -> list[str]:
    """Report how many tokens of each side are unknown. A language model's source has none, and labels are all known."""
    text = split.text
    sides = (split.src, text.src, made.src, "source"), (split.tgt, text.tgt, made.tgt, "target")
    counted = [side for side in sides if len(side[0].tokens) and not isinstance(side[2].segmenter, Labels)]
    shares = [
        unknown.describe(tokens, lines, vocabulary, f"{side} tokens" if len(counted) > 1 else "tokens")
        for tokens, lines, vocabulary, side in counted
    ]
    return [f"unknown in {text.name}: {', '.join(shares)}"] if shares else []


def _tell_of_held_out(cfg: Config, split: Split, made: Vocabularies, tell: Tell) -> None:
    """Report the unknown tokens of a split, and how many pairs a validation truncates: their loss is not whole."""
    for sentence in _unknown_in(split, made):
        tell(sentence)
    tokenize = cfg.training.bleu_tokenize
    if cfg.examples == "pairs" and (best := scoring.tokenizer_of(split.text.tgt, tokenize)) not in (tokenize, "13a"):
        tell(f"{split.text.name}: BLEU's tokeniser is {best}, by the script of the references")
    src, tgt = split.lengths()
    cut = int(np.sum((src > cfg.model.max_source) | (tgt > cfg.model.max_target)))
    if cut:
        tell(
            f"{split.text.name}: {cut} of {len(src)} {cfg.examples} exceed the model's positions, "
            f"{limits(cfg, cfg.model.max_source, cfg.model.max_target)}; their loss covers only the beginning"
        )


def limits(cfg: Config, source: int, target: int) -> str:
    """Describe maximum lengths, as in "62 source or 62 target tokens".

    A language model has no source, and a target of a classifier is a label: there is one length then.
    """
    one = target if cfg.data.one_sided else source
    return f"{source} source or {target} target tokens" if cfg.examples == "pairs" else f"{one} tokens"


def _usable_rows(cfg: Config, train: Split, most: tuple[int, int], tell: Tell) -> tuple[np.ndarray, str]:
    """Return the indices of the examples that are neither empty nor too long, [n], and how many are used and skipped.

    Raises:
      UserError: none is left.
    """
    max_source, max_target = most
    src, tgt = train.lengths()
    rows, *skipped = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    has, skips = ("has an empty side", "with an empty side") if cfg.examples == "pairs" else ("is empty", "as empty")
    used = (
        f"{len(rows)} used, {skipped[0]} skipped {skips}, {skipped[1]} skipped as longer than "
        f"{limits(cfg, max_source, max_target)}"
    )
    tell(f"training {cfg.examples}: {used}")
    check(
        len(rows) > 0,
        f"no training {cfg.examples.removesuffix('s')} is left: each {has} or is longer than "
        f"{limits(cfg, max_source, max_target)}; raise data.batch.max_length or the model's positions",
    )
    return rows, used


def segmented(
    cfg: DataConfig, train: Split, made: Vocabularies, folder: Path, *, seed: int, epoch: int, longest: tuple[int, int]
) -> Split:
    """Return the training data of an epoch: unchanged, or in a random segmentation that the arguments determine.

    A sentence whose random segmentation is too long keeps its best one. Labels and word lists are never resegmented.

    Args:
      cfg: `subword_sampling` and `workers` are used.
      train: in the best segmentation, with its lines.
      made: vocabularies of both sides.
      folder: for temporary files.
      seed: of the run.
      epoch: from 1.
      longest: maximum number of tokens of a source and a target, end symbols included.
    """
    if not cfg.subword_sampling:
        return train

    def drawn(side: int, texts: Sequence[str], vocabulary: Vocabulary, best: TokenizedText) -> TokenizedText:
        if not (vocabulary.segmenter.divides_words and len(best.tokens)):
            return best
        share, rate = processes.local(cfg.workers), cfg.subword_sampling
        found = segmentation.draw(texts, vocabulary, folder, rate=rate, seed=(seed, epoch, side), share=share)
        cut_anyway = side == 0 and train.longest is not None and longest[0] >= train.longest
        return found if cut_anyway else segmentation.within(found, best, longest[side])

    return dataclasses.replace(
        train,
        src=drawn(0, train.text.src, made.src, train.src),
        tgt=drawn(1, train.text.tgt, made.tgt, train.tgt),
    )
