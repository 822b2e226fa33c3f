"""A workdir: the files of a run, enough to continue it and to decode.

config.json  vocab/  checkpoints/<step>/  metrics.jsonl  train.log  tensorboard/  samples/  cache/  lock
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convs2s_jax.core import files
from convs2s_jax.core.checksums import FIELD, DamagedError, seal, unseal
from convs2s_jax.core.config import LAST_BEFORE, build, check, differences, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_json, replace_file
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data.vocabulary import Vocabularies, save
from convs2s_jax.training.run.config import Config

FREE = (
    *("search", "mesh", "parallel", "training", "model.execution", "model.matmul_precision"),
    *("data.dir", "data.files", "data.mixture.files", "data.tfds_dir", "data.cache_dir", "data.workers"),
)
"""Fields that may change when a run is continued: limits, reports, execution of layers, precision of products, devices,
and the paths of the data (the content is compared); but those of training that are `FIXED` may not."""
FIXED = ("training.optimizer", "training.schedule", "training.clip", "training.sum_dtype", "training.label_smoothing")

LOG = "train.log"
"""File in a workdir with the messages of its training."""
SCORES = "scores.json"
"""File in a workdir with the scores of its checkpoints."""
FACTS = "facts.json"
"""File in a workdir with what its training began with and how it ended."""
FILES = (
    *("config.json", "vocab", "checkpoints", SCORES, "metrics.jsonl", "metrics.jsonl.damaged", LOG, FACTS, "cache"),
    *("tensorboard", "samples", "profile", "mlflow.db", "wandb", "lock"),
)
"""Names of the files and folders that a run writes into its workdir."""

DAMAGED = ".damaged"
"""Suffix of a checkpoint that could not be read. It is kept, since it may still be of use."""


def checkpoints(workdir: Path) -> Path:
    """Folder of the checkpoints."""
    return workdir / "checkpoints"


def vocabulary(workdir: Path) -> Path:
    """Folder of the vocabularies."""
    return workdir / "vocab"


def cache(workdir: Path, cache_dir: str = "") -> Path:
    """Folder of tokenised text on this machine: `data.cache_dir`, or the workdir's own."""
    return Path(cache_dir) if cache_dir and not scheme_of(cache_dir) else workdir / "cache"


def learned_vocabularies(workdir: Path) -> Path:
    """Folder of the vocabularies learned before the first checkpoint, in subfolders. A start copies one."""
    return cache(workdir) / "vocab"


def finished(folder: Path) -> dict[int, Path]:
    """The finished checkpoints in a folder of checkpoints, by step."""
    try:
        steps = {int(place.name): place for place in folder.iterdir() if re.fullmatch("[0-9]+", place.name)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return dict(sorted(steps.items()))


def has_checkpoint(workdir: Path) -> bool:
    """Whether there is a checkpoint. Before the first one, the configuration and the vocabularies may still change."""
    return bool(finished(checkpoints(workdir)))


def load_config(workdir: Path, *, given_as: str = "--workdir") -> Config:
    """The resolved configuration of a run.

    Args:
      workdir: of the run.
      given_as: the flag or field that specified it, for messages.

    Raises:
      UserError: the folder does not exist, or its config.json is missing, damaged or does not fit this version.
    """
    path = workdir / "config.json"
    if not workdir.is_dir():
        raise UserError(f"{given_as}={workdir}: there is no such folder")
    if not os.path.lexists(path):
        raise UserError(f"{given_as}={workdir} contains no config.json: no training was started there")
    values = read_json(path, remedy="restore it, or train again in another workdir")
    try:
        if isinstance(values, dict) and FIELD in values:  # whoever edits the file deletes its checksum
            values = unseal(values)
        return build(Config, values, "config")
    except DamagedError as error:
        raise UserError(
            f"{path} is damaged or was edited ({error}): restore it, and change fields with the flags of convs2s train "
            f"and decode; to keep an intentional edit, delete its field '{FIELD}'"
        ) from error
    except UserError as error:
        earlier = f"; if an earlier version wrote {path}, commit {LAST_BEFORE} reads it"
        raise UserError(f"{error}{'' if LAST_BEFORE in str(error) else earlier}") from None


def fingerprints(vocabularies: Vocabularies) -> list[str]:
    """Fingerprints of the vocabularies, which a checkpoint stores."""
    return [vocabularies.src.fingerprint, vocabularies.tgt.fingerprint]


def check_vocabularies(workdir: Path, vocabularies: Vocabularies, position: Mapping[str, Any]) -> None:
    """Raise UserError if a checkpoint at `position` was trained with other vocabularies."""
    check(
        position["vocabularies"] == fingerprints(vocabularies),
        f"{vocabulary(workdir)} is the vocabulary of another model: restore the original one",
    )


def check_trained(
    workdir: Path, vocabularies: Vocabularies, position: Mapping[str, Any], *, given_as: str = "--workdir"
) -> None:
    """Check that a checkpoint has these vocabularies and was trained.

    Imported parameters may have step 0: they were trained elsewhere, and have no fingerprint of their data. `given_as`
    is that of `load_config`.

    Raises:
      UserError: it has other vocabularies, or was written before the first update.
    """
    check_vocabularies(workdir, vocabularies, position)
    if position["step"] == 0 and position["data"] is not None:
        raise UserError(
            f"{given_as}={workdir} contains random parameters: its checkpoint of step 0 was written before the first "
            "update; train first, with the command that started the run"
        )


def check_config(workdir: Path, cfg: Config) -> None:
    """Check that a run in the workdir, if it has a checkpoint, has this configuration. Nothing is written.

    Raises:
      UserError: a field differs that may not change; the message names the first five.
    """
    if not has_checkpoint(workdir):
        return
    path = workdir / "config.json"
    check(os.path.lexists(path), f"{path} is missing, but checkpoints here need it: restore it, or use another workdir")
    odd = differences(load_config(workdir), cfg, free=_free)
    check(
        not odd,
        f"--workdir={workdir} contains a run with another configuration: {odd}. Use another workdir, or the settings "
        "of that run",
    )


def write_inputs(workdir: Path, cfg: Config, vocabularies: Vocabularies) -> None:
    """Write config.json, and the vocabularies unless a checkpoint needs those that are there.

    Raises:
      UserError: they cannot be written.
    """
    write_config(workdir, cfg)
    if not has_checkpoint(workdir):
        save(vocabularies, vocabulary(workdir))


def write_config(workdir: Path, cfg: Config) -> None:
    """Write config.json into a workdir, whose folder exists.

    Raises:
      UserError: it cannot be written.
    """
    with writing(workdir):
        replace_file(workdir / "config.json", json.dumps(seal(to_dict(cfg)), indent=2) + "\n")


def writing(workdir: Path) -> contextlib.AbstractContextManager[None]:
    """Turn an OSError of the block, which writes into a workdir, into a UserError."""
    return files.writing(f"--workdir={workdir}", "use another workdir")


def provide(workdir: Path, stack: contextlib.ExitStack) -> None:
    """Create a workdir and its missing parents; those that are empty when the stack closes are removed.

    Raises:
      OSError: it cannot be created.
    """
    missing = [path for path in (workdir, *workdir.parents) if not path.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        stack.callback(_remove_if_empty, folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _free(name: str) -> bool:
    name = re.sub(r"\.[0-9]+\.", ".", name)  # items of a list

    def under(fields: Iterable[str]) -> bool:
        return any(name == field or name.startswith(f"{field}.") for field in fields)

    return under(FREE) and not under(FIXED)
