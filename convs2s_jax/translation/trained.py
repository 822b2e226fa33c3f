"""Loading a trained model from a workdir: configuration, vocabularies, parameters."""

import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import build, check, override, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import corpora, parallel_text, vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.parallel_text import ParallelText
from convs2s_jax.data.store import UnwritableError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.average import average
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import prepare, run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir, restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs.dataset import (
    Known,
    Split,
    check_unchanged,
    fingerprint,
    fingerprint_of_text,
    recogniser,
)
from convs2s_jax.training.run.stores import store_copy
from convs2s_jax.training.run.tasks.task_table import task_of

Dtype = Literal["float32", "bfloat16"]
Steps = Sequence[int | str]
"""Steps of checkpoints; "last:N" stands for those of the last N."""
Places = Sequence[tuple[str, str]]
"""Where a corpus is now: ("data.dir" or "data.files", text) of the command line."""
OTHER_TEXTS = "translate other texts with --input and --reference"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model of any kind.

    Attributes:
      cfg: configuration of the training run.
      vocabularies: vocabularies of both sides.
      params: merged parameters.
      steps: steps of the checkpoints whose mean the parameters are.
      fingerprint: digest of model configuration, vocabularies and checkpoints.
      positions: progress of training of each of these checkpoints, in the order of `steps`.
      splits: fingerprints of "train", "valid" and "test" that the checkpoints know (`dataset.check_unchanged`).
    """

    cfg: Config
    vocabularies: Vocabularies
    params: Tree
    steps: tuple[int, ...]
    fingerprint: str
    positions: tuple[Mapping[str, Any], ...]
    splits: Mapping[str, Known]


def restore(
    workdir: Path, steps: Steps, dtype: Dtype | None, tell: Callable[[str], None], *, given_as: str = "--workdir"
) -> Trained:
    """Load the model of a workdir; arguments and errors as in `translator.load`."""
    folder = run_folder.checkpoints(workdir)
    cfg = run_folder.load_config(workdir, given_as=given_as)
    if dtype is not None:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dtype=dtype))
    vocabularies = vocabulary.load(run_folder.vocabulary(workdir))
    task = task_of(cfg.model)

    def fresh(key: jax.Array) -> Tree:
        params = task.init(key, cfg.model, source=vocabularies.src.size, target=vocabularies.tgt.size)
        return task.split(params, cfg.model)

    abstract = jax.eval_shape(fresh, jax.eval_shape(jax.random.key, 0))  # shapes alone: nothing is compiled
    one = partial(
        restoring.restore_params,
        folder,
        abstract,
        metric=cfg.training.best_metric,
        check=partial(run_folder.check_trained, workdir, vocabularies, given_as=given_as),
        tell=tell,
    )
    asked = steps_of(folder, steps)
    if len(asked) > 1 and any("last" in str(item) for item in steps):
        tell(f"{workdir}: the mean of the checkpoints of steps {', '.join(map(str, asked))}")
    found = [one(step=step) for step in asked or (None,)]
    trees = [weight_norm.unsplit(tree) if derived_workdir.AVERAGED in position else tree for tree, position in found]
    params = jax.jit(average)(trees)
    positions = [position for _, position in found]
    content = [to_dict(cfg.model), vocabularies.src.fingerprint, vocabularies.tgt.fingerprint]
    content += [position["digests"]["params"] for position in positions]
    fingerprint = checksum(json.dumps(content, sort_keys=True).encode())
    numbers = tuple(position["step"] for position in positions)
    splits = {"train": positions[-1].get("data"), **positions[-1].get("held_out", {})}
    return Trained(cfg, vocabularies, params, numbers, fingerprint, tuple(positions), splits)


def steps_of(folder: Path, asked: Steps) -> tuple[int, ...]:
    """The steps that are asked for, with those that "last:N" stands for. Whether they are there is not checked.

    Args:
      folder: folder of the checkpoints.
      asked: numbers, and "last:N".

    Raises:
      UserError: an item that is neither, a step that is named twice, or fewer than N checkpoints.
    """
    steps = [step for item in asked for step in _steps(folder, str(item))]
    for step in steps:
        check(steps.count(step) == 1, f"--checkpoint names step {step} twice: a mean takes each checkpoint once")
    return tuple(steps)


def _steps(folder: Path, item: str) -> Sequence[int]:
    found = re.fullmatch("(last:)?([0-9]{1,12})", item.strip(), re.ASCII)
    if found is None or (found[1] and not int(found[2])):
        raise UserError(f"--checkpoint has '{item}': name a step, or last:N for the last N checkpoints")
    number = int(found[2])
    if not found[1]:
        return [number]
    store_copy.refresh(folder.parent)
    there = list(run_folder.finished(folder))
    check(
        len(there) >= number,
        f"--checkpoint has '{item}', and {folder} holds {len(there)}: training.keep says how many stay",
    )
    return there[-number:]


def read_split(
    cfg: Config,
    vocabularies: Vocabularies,
    split: str,
    known: Mapping[str, Known],
    workdir: str,
    *,
    tell: Callable[[str], None],
    places: Places | None = None,
    way_out: str = OTHER_TEXTS,
) -> ParallelText:
    """Read a split of a run's corpus.

    Training text is compared by its token ids (`tokenized_training`), which are mostly in the cache.

    Args:
      cfg: the run's configuration.
      vocabularies: of the run.
      split: "train", "valid" or "test".
      known: fingerprints of all three, as the checkpoint knows them.
      workdir: of the run.
      tell: receives sentences for the user.
      places, way_out: as of `located_corpus`.

    Raises:
      UserError: it cannot be read, is not there, or is not the one that the checkpoint knows.
    """
    cfg = located_corpus(cfg, split, workdir, places, way_out=way_out)
    text = parallel_text.read(cfg.data, split, optional=True, recognise=recogniser(known))
    if split != "train":
        check_unchanged(split, fingerprint_of_text(text), known, where=workdir, way_out=way_out)
    elif known.get(split) is not None:
        tokenized_training(cfg, Path(workdir), vocabularies, text, known[split], tell=tell, way_out=way_out)
    check(len(text) > 0, f"the corpus of --workdir={workdir} has no {split} split: {way_out}")
    return text


def moved(data: DataConfig, places: Places) -> DataConfig:
    """The configuration of a corpus with the places that are given. UserError for one that it cannot be."""
    values: Any = data
    for path, text in places:
        values = override(values, path.removeprefix("data."), text, "config.data")
    if not places:
        return data
    made = build(DataConfig, values, "config.data")
    corpora.check_places(made)
    return made


def located_corpus(cfg: Config, split: str, workdir: str, places: Places | None, *, way_out: str) -> Config:
    """The configuration of a run whose corpus may have moved since.

    Args:
      cfg: the run's configuration.
      split: that is read.
      workdir: of the run.
      places: where the corpus is now; None if the command takes none.
      way_out: what the user can do instead, for messages.

    Raises:
      UserError: the corpus is not there.
    """
    cfg = dataclasses.replace(cfg, data=moved(cfg.data, places or ()))
    if place := corpora.missing(cfg.data, split):
        flags = "" if places is None else ", say where it is with --config.data.dir or --config.data.files"
        raise UserError(
            f"the corpus of --workdir={workdir} is not there: '{place}' does not exist; go to the folder where its "
            f"training was started{flags}, or {way_out}"
        )
    return cfg


def tokenized_training(
    cfg: Config,
    workdir: Path,
    vocabularies: Vocabularies,
    text: ParallelText,
    known: Known,
    *,
    tell: Callable[[str], None],
    way_out: str,
) -> Split:
    """Token ids of the training text of a run, from its cache; in a temporary folder where that cannot be written.

    Args:
      cfg, workdir, vocabularies, text: of the run.
      known: the fingerprint that its checkpoints know.
      tell: receives sentences for the user.
      way_out: what the user can do instead, for messages.

    Raises:
      UserError: the text is not the one that the checkpoints know.
    """
    try:
        split = prepare.tokenize(cfg, workdir, vocabularies, text, tell)
    except UnwritableError:
        with tempfile.TemporaryDirectory(prefix="convs2s_jax-") as folder:
            elsewhere = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, cache_dir=folder))
            split = prepare.tokenize(elsewhere, workdir, vocabularies, text, tell)  # mapped, so still there afterwards
    found = fingerprint(split.src, split.tgt) if len(text) else None
    check_unchanged("train", found, {"train": known}, where=str(workdir), way_out=way_out)
    return split
