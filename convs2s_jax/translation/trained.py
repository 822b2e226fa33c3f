"""Load a trained model from a workdir: configuration, vocabularies, parameters."""

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import build, check, override, to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data import corpora, parallel_text, vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.tokens_on_disk import UnwritableError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.conversion import average
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import prepare, run_folder, store_copy
from convs2s_jax.training.run.checkpoints import derived_workdir, restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import (
    Known,
    Split,
    check_unchanged,
    fingerprint,
    fingerprint_of_text,
)
from convs2s_jax.training.run.programs import abstract_state

Dtype = Literal["float32", "bfloat16"]
Steps = Sequence[int | str]
"""Steps of checkpoints; "last:N" stands for those of the last N."""
Places = Sequence[tuple[str, str]]
"""Where a corpus is now, as ("data.dir" or "data.files", value) from the command line."""
OTHER_TEXTS = "translate other texts with --input and --reference"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model of any kind.

    Attributes:
      cfg, vocabularies: configuration of the training run, and vocabularies of both sides.
      params: merged parameters.
      steps: steps of the checkpoints that the parameters are averaged from.
      fingerprint: digest of model configuration, vocabularies and checkpoints.
      positions: training position of each of these checkpoints, in the order of `steps`.
      splits: fingerprints of "train", "valid" and "test" in the checkpoints (`dataset.check_unchanged`).
    """

    cfg: Config
    vocabularies: Vocabularies
    params: Tree
    steps: tuple[int, ...]
    fingerprint: str
    positions: tuple[Mapping[str, Any], ...]
    splits: Mapping[str, Known]


def restore_from(workdir: Path | str, steps: Steps, dtype: Dtype | None, tell: Tell, *, given_as: str) -> Trained:
    """`restore` for a workdir that may be an address in an object store."""
    with store_copy.reading(workdir, tell, flag=given_as) as (folder, told):
        return restore(folder, steps, dtype, told, given_as=given_as)


def restore(workdir: Path, steps: Steps, dtype: Dtype | None, tell: Tell, *, given_as: str = "--workdir") -> Trained:
    """Load the model of a workdir. Arguments and errors are those of `translator.load`."""
    folder = run_folder.checkpoints(workdir)
    cfg = run_folder.load_config(workdir, given_as=given_as)
    if dtype is not None:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dtype=dtype))
    vocabularies = vocabulary.load(run_folder.vocabulary(workdir)).normalizing(cfg.data.normalize)
    sizes = {"source": vocabularies.src.size, "target": vocabularies.tgt.size}
    abstract = abstract_state(cfg.model, cfg.training, **sizes).params
    one = partial(
        restoring.restore_items,
        folder,
        {"params": abstract},
        metric=cfg.training.best_metric,
        check=partial(run_folder.check_trained, workdir, vocabularies, given_as=given_as),
        tell=tell,
    )
    asked = steps_of(folder, steps)
    if len(asked) > 1 and any("last" in str(item) for item in steps):
        tell(f"{workdir}: averaging the checkpoints of steps {', '.join(map(str, asked))}")
    found = [one(step=step) for step in asked or (None,)]
    trees = [
        weight_norm.unsplit(items["params"]) if derived_workdir.AVERAGED in position else items["params"]
        for items, position in found
    ]
    params = jax.jit(average)(trees)
    positions = [position for _, position in found]
    content = [to_dict(cfg.model), vocabularies.src.fingerprint, vocabularies.tgt.fingerprint]
    content += [position["digests"]["params"] for position in positions]
    fingerprint = checksum(json.dumps(content, sort_keys=True).encode())
    numbers = tuple(position["step"] for position in positions)
    splits = {"train": positions[-1].get("data"), **positions[-1].get("held_out", {})}
    return Trained(cfg, vocabularies, params, numbers, fingerprint, tuple(positions), splits)


def steps_of(folder: Path, asked: Steps) -> tuple[int, ...]:
    """Return the requested steps of a folder of checkpoints, with "last:N" expanded.

    Raises:
      UserError: an item is neither a step nor "last:N", a step occurs twice, or there are fewer than N checkpoints.
    """
    steps: list[int] = []
    for item in map(str, asked):
        found = re.fullmatch("(last:)?([0-9]{1,12})", item.strip(), re.ASCII)
        if found is None or (found[1] and not int(found[2])):
            raise UserError(f"--checkpoint contains '{item}': expected a step, or last:N for the last N (1 or more)")
        number = int(found[2])
        if not found[1]:
            steps.append(number)
            continue
        there = list(run_folder.finished(folder))
        check(
            len(there) >= number,
            f"--checkpoint contains '{item}', but {folder} has only {len(there)}; training.keep sets how many are kept",
        )
        steps += there[-number:]
    for step in steps:
        check(steps.count(step) == 1, f"--checkpoint contains step {step} twice; an average uses each checkpoint once")
    return tuple(steps)


def read_split(
    cfg: Config,
    vocabularies: Vocabularies,
    split: str,
    known: Mapping[str, Known],
    workdir: str,
    *,
    tell: Tell,
    places: Places | None = None,
    remedy: str = OTHER_TEXTS,
) -> ParallelText:
    """Read a split of a run's corpus. Training text is compared by its token ids, which are usually in the cache.

    Args:
      cfg, vocabularies, workdir: configuration, vocabularies and workdir of the run.
      split: "train", "valid" or "test".
      known: fingerprints of all three in the checkpoint.
      tell: receives messages for the user.
      places: where the corpus is now; None if the command has no flags for it.
      remedy: what the user can do instead, for messages.

    Raises:
      UserError: the split cannot be read, does not exist, or differs from that of the checkpoint.
    """
    cfg = located_corpus(cfg, split, workdir, places, remedy=remedy)
    text = parallel_text.read(cfg.data, split, optional=True)
    if split != "train":
        check_unchanged(split, fingerprint_of_text(text), known, where=workdir, remedy=remedy)
    elif known.get(split) is not None:
        tokenized_training(cfg, Path(workdir), vocabularies, text, known[split], tell=tell, remedy=remedy)
    check(len(text) > 0, f"the corpus of --workdir={workdir} has no {split} split: {remedy}")
    return text


def moved(data: DataConfig, places: Places) -> DataConfig:
    """Return the configuration of a corpus at the given places. Raises UserError for an invalid place."""
    if not places:
        return data
    values: Any = data
    for path, text in places:
        values = override(values, path.removeprefix("data."), text, "config.data")
    made = build(DataConfig, values, "config.data")
    corpora.check_places(made)
    return made


def located_corpus(cfg: Config, split: str, workdir: str, places: Places | None, *, remedy: str) -> Config:
    """Return the configuration of a run whose corpus may have moved. Arguments are those of `read_split`.

    Raises:
      UserError: the corpus does not exist.
    """
    cfg = dataclasses.replace(cfg, data=moved(cfg.data, places or ()))
    if place := corpora.missing(cfg.data, split):
        flags = "" if places is None else ", set its place with --config.data.dir or --config.data.files"
        raise UserError(
            f"the corpus of --workdir={workdir} is missing: '{place}' does not exist; change to the folder where its "
            f"training was started{flags}, or {remedy}"
        )
    return cfg


def tokenized_training(
    cfg: Config,
    workdir: Path,
    vocabularies: Vocabularies,
    text: ParallelText,
    known: Known,
    *,
    tell: Tell,
    remedy: str,
) -> Split:
    """Return the token ids of a run's training text from its cache, or a temporary folder if that cannot be written.

    Arguments are those of `read_split`; `known` is the fingerprint of the text in the checkpoints.

    Raises:
      UserError: the text differs from that of the checkpoints.
    """
    try:
        split = prepare.tokenize(cfg, workdir, vocabularies, text, tell)
    except UnwritableError:
        with tempfile.TemporaryDirectory(prefix="convs2s_jax-") as folder:
            elsewhere = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, cache_dir=folder))
            split = prepare.tokenize(elsewhere, workdir, vocabularies, text, tell)  # memory-mapped, so it stays valid
    found = fingerprint(split.src, split.tgt) if len(text) else None
    check_unchanged("train", found, {"train": known}, where=str(workdir), remedy=remedy)
    return split
