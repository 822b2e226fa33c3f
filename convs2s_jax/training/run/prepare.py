"""From a configuration to tokenised text, vocabularies and batch shapes."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text, plan, shapes, store, unknown, vocabulary
from convs2s_jax.data.parallel_text import ParallelText
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.metrics import scoring
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run import finetuning, run_folder, validation
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import segmenting, sides
from convs2s_jax.training.run.inputs.dataset import Split, fingerprint, fingerprint_of_text, recogniser
from convs2s_jax.training.run.selection import LOSS
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.schedule import PlateauConfig


@dataclasses.dataclass(frozen=True)
class Run:
    """The constants of a run: configuration, data, vocabularies and shapes.

    Attributes:
      cfg: the configuration.
      workdir: folder of the run.
      vocabularies: of both sides.
      train: tokenised training data.
      valid: tokenised validation data, or None.
      test: tokenised test data, or None.
      rows: numbers of the training pairs in use.
      shapes: of training batches.
      first_uses: those of the first epoch, in the order of their first use.
      held_out_shapes: of batches of the validation and the test set.
      batches: number of batches in an epoch (some epochs have one more or less).
      fingerprint: checksum of the tokenised training data.
      held_out: checksums of the lines of "valid" and "test"; None for one that is not there.
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
    fingerprint: int
    held_out: Mapping[str, str | None]


def prepare(cfg: Config, workdir: Path, tell: Callable[[str], None], *, learn: bool = True) -> Run:
    """Read the corpus, learn or load vocabularies, tokenise, choose shapes.

    Args:
      cfg: configuration.
      workdir: of the run.
      tell: gets sentences for the user.
      learn: whether to learn vocabularies where no checkpoint needs those in the workdir; else another process has done
        so. They lie in the workdir's cache until the run begins.

    Raises:
      UserError: the corpus cannot be read, nothing of it can be trained on, or the workdir's vocabulary is missing
        where checkpoints of it exist.
    """
    scoring.check_metrics(cfg.training.metrics, cfg.training.bleu_tokenize)
    if not run_folder.begun(workdir):
        corpora.check_places(cfg.data)
        _check_rate(cfg.training.schedule)
    known = position_file.known_splits(workdir) if cfg.data.hold_out else {}
    text, valid_text = parallel_text.read_train_and_valid(cfg.data, recognise=recogniser(known))
    test_text = parallel_text.read(cfg.data, "test", optional=True)
    if not len(valid_text):
        check(
            not isinstance(cfg.training.schedule, PlateauConfig),
            "training.schedule is a plateau's, and there is no validation set to see one on: use a schedule of another "
            "kind, or data.hold_out=0.05",
        )
        for name, unset in (("patience", None), ("best_metric", LOSS)):
            value = getattr(cfg.training, name)
            check(
                value == unset,
                f"training.{name} is {value}, and there is no validation set: leave it out, or set data.hold_out=0.05",
            )
        tell("there is no validation set: the last parameters count")
    if valid_text.rows is not None:
        copies = f"; {valid_text.copies} copies of them are left out" if valid_text.copies else ""
        tell(f"held out for validation: {len(valid_text)} pairs{copies}")
    given = valid_text, test_text
    for held, count in zip(given, parallel_text.shared_pairs(text, *given), strict=True):
        if count:
            tell(
                f"{held.name}: {count} of {len(held)} pairs are also in the training text, so the loss and the scores "
                "are better than on new text"
            )
    vocabularies = _vocabularies(cfg, workdir, text, tell, learn=learn)
    segmenting.check_vocabularies(cfg.data, vocabularies)
    check(
        vocabularies.joint or not (isinstance(cfg.model, ModelConfig) and cfg.model.share_embeddings),
        "model.share_embeddings is True, and the two sides have different vocabularies: use a joint one",
    )
    train = tokenize(cfg, workdir, vocabularies, text, tell)
    valid = tokenize(cfg, workdir, vocabularies, valid_text, tell) if len(valid_text) else None
    test = tokenize(cfg, workdir, vocabularies, test_text, tell) if len(test_text) else None
    held_out = [split for split in (valid, test) if split is not None]
    for split in (train, *held_out):
        _tell_of_unknown(split, vocabularies, tell)
    if not cfg.data.subword_sampling:
        train = dataclasses.replace(train, text=text.without_lines())
    for split in held_out:
        _tell_of_cuts(cfg, split, tell)
    max_source, max_target = longest(cfg)
    if cfg.data.batch.cut_source:
        tell(f"sources cut to {max_source} tokens: {int(np.sum(train.lengths()[0] > max_source))}")
        train = dataclasses.replace(train, longest=max_source)
    src, tgt = train.lengths()
    rows, skipped = plan.usable(src, tgt, max_source=max_source, max_target=max_target, one_sided=cfg.data.one_sided)
    tell(
        f"training pairs: {len(rows)} used, {skipped.empty} skipped with an empty side, {skipped.too_long} skipped as "
        f"longer than {max_source} source or {max_target} target tokens"
    )
    if len(rows) == 0:
        most, by, what = cfg.data.batch.max_length, "data.batch.max_length", "it"
        if min(max_source, max_target) < most:
            most, by, what = min(max_source, max_target), "the model's positions", "them"
        raise UserError(
            f"no training pair is left: each has an empty side or is longer than the {most} tokens of {by}; "
            f"raise {what}"
        )
    first = segmenting.of_epoch(cfg.data, train, vocabularies, seed=cfg.seed, epoch=1, longest=(max_source, max_target))
    if cfg.data.subword_sampling:
        tell(
            f"data.subword_sampling is {cfg.data.subword_sampling}: the training text is segmented anew in each epoch; "
            f"the first has {_tokens(first, rows)} tokens, the best segmentation {_tokens(train, rows)}"
        )
    tight, chosen = batch_shapes(cfg, *(side[rows] for side in segmenting.longest_of((src, tgt), first.lengths())))
    src, tgt = first.lengths()
    example = plan.plan_epoch(src, tgt, rows, chosen, seed=cfg.seed, epoch=1)
    without = ""
    if chosen != tight:
        padding = plan.plan_epoch(src, tgt, rows, tight, seed=cfg.seed, epoch=1).padding
        without = f" ({100 * padding:.1f} % without row_multiple and length_multiple)"
    tell(
        f"batches: {len(example.batches)} an epoch in {len(chosen)} shapes, {100 * example.padding:.1f} % padding"
        f"{without}; " + ", ".join(f"{s.rows} x ({s.src}, {s.tgt})" for s in chosen)
    )
    return Run(
        cfg,
        workdir,
        vocabularies,
        train,
        valid,
        test,
        rows,
        chosen,
        example.first_uses(),
        validation.held_out_shapes(cfg.model, held_out, tokens=cfg.data.batch.tokens),
        batches=len(example.batches),
        fingerprint=fingerprint(train.src, train.tgt),
        held_out={"valid": fingerprint_of_text(valid_text), "test": fingerprint_of_text(test_text)},
    )


def _tokens(split: Split, rows: np.ndarray) -> int:
    """Tokens of these pairs, both sides and end symbols."""
    return sum(int(side[rows].sum()) for side in split.lengths())


def _check_rate(schedule: object) -> None:
    """Refuse to begin below the rate at which a plateau ends: the first validation without progress would be the last.

    It is no rule of the record, since earlier runs may have it.
    """
    if isinstance(schedule, PlateauConfig):
        check(
            schedule.minimum <= schedule.rate,
            f"training.schedule.minimum is {schedule.minimum:g}, at which training ends: use the rate, "
            f"{schedule.rate:g}, or less",
        )


def _tell_of_unknown(split: Split, vocabularies: Vocabularies, tell: Callable[[str], None]) -> None:
    """Say how many tokens of each side are unknown; a side without tokens is that of a language model."""
    text = split.text
    sides = (split.src, text.src, vocabularies.src, "source"), (split.tgt, text.tgt, vocabularies.tgt, "target")
    shares = [unknown.describe(*side) for side in sides if len(side[0].tokens)]
    if shares:
        tell(f"unknown in {text.name}: {', '.join(shares)}")


def _tell_of_cuts(cfg: Config, split: Split, tell: Callable[[str], None]) -> None:
    """Say how many pairs of a split `validation.evaluate` cuts: their losses are not those of the whole lines."""
    src, tgt = split.lengths()
    cut = int(np.sum((src > cfg.model.max_source) | (tgt > cfg.model.max_target)))
    if cut:
        tell(
            f"{split.text.name}: {cut} of {len(src)} pairs exceed the model's positions, {cfg.model.max_source} source "
            f"and {cfg.model.max_target} target tokens: the loss is that of their beginnings"
        )


def longest(cfg: Config) -> tuple[int, int]:
    """Most tokens of a source and of a target that are trained on."""
    most = cfg.data.batch.max_length
    return min(most, cfg.model.max_source), min(most, cfg.model.max_target)


def batch_shapes(cfg: Config, src: np.ndarray, tgt: np.ndarray) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Shapes for pairs of these lengths: with the least padding, and with the multiples that the run asks for."""
    batch, (max_source, max_target) = cfg.data.batch, longest(cfg)
    tight = shapes.choose_shapes(src, tgt, tokens=batch.tokens, count=batch.shapes)
    most = (1 if cfg.data.one_sided else max_source, max_target)
    return tight, shapes.rounded(
        tight, tokens=batch.tokens, rows=batch.row_multiple, length=batch.length_multiple, most=most
    )


def tokenize(
    cfg: Config, workdir: Path, vocabularies: Vocabularies, text: ParallelText, tell: Callable[[str], None]
) -> Split:
    """Token ids of a split, from the cache where an earlier run left them intact."""
    folder = Path(cfg.data.cache_dir) if cfg.data.cache_dir else workdir / "cache"
    split = Split(
        text=text,
        src=store.tokenize(text.src, vocabularies.src, folder, f"{text.name}.src", tell=tell),
        tgt=store.tokenize(text.tgt, vocabularies.tgt, folder, f"{text.name}.tgt", tell=tell),
    )
    task_of(cfg.model).check_targets(split, vocabularies)
    return split


def _vocabularies(
    cfg: Config, workdir: Path, text: ParallelText, tell: Callable[[str], None], *, learn: bool
) -> Vocabularies:
    folder = run_folder.vocabulary(workdir)
    if run_folder.begun(workdir):
        if not folder.is_dir():
            raise UserError(f"{folder} is missing, and checkpoints here need it: restore it, or use another workdir")
        return vocabulary.load(folder)
    learned = run_folder.learned_vocabularies(workdir) / _origin(cfg, text)
    if not learn:
        return vocabulary.load(learned)
    if cfg.training.finetune_from:
        made = finetuning.vocabularies(cfg, tell)
    elif place := cfg.data.vocabulary.dir:
        made = vocabulary.load_from(place)
        if other := sides.of_vocabularies(place):
            sides.compare(other, cfg.data, f"data.vocabulary.dir={place}", joint=made.joint, tell=tell)
    else:
        if learned.is_dir():
            try:
                made = vocabulary.load(learned)
                tell("the vocabularies that an earlier start has learned are used again")
                return made
            except UserError:
                tell(f"{learned} is damaged and is written again")
        tell("learning the vocabularies from the training text")
        made = task_of(cfg.model).build_vocabularies(cfg.data, text, cfg.seed)
    vocabulary.save(made, learned)
    return made


def _origin(cfg: Config, text: ParallelText) -> str:
    """A checksum of all that learned vocabularies depend on, as a name for their folder."""
    if cfg.data.vocabulary.dir or cfg.training.finetune_from:
        return "given"
    settings = {
        "data.vocabulary": to_dict(cfg.data.vocabulary),
        "one_sided": cfg.data.one_sided,
        "seed": cfg.seed,
        "task": type(cfg.model).__name__,
        "sentencepiece": version("sentencepiece"),
        "text": fingerprint_of_text(text),
    }
    return checksum(json.dumps(settings, sort_keys=True).encode())
