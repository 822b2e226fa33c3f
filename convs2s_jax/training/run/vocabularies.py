"""The vocabularies of a run: those of its workdir, given ones, those of another run, or learned from its text."""

import contextlib
import json
from importlib.metadata import version
from pathlib import Path

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run import finetuning, run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import sides
from convs2s_jax.training.run.inputs.training_text import TrainingText
from convs2s_jax.training.run.tasks.task_table import task_of


def of_run(cfg: Config, workdir: Path, text: TrainingText, tell: Tell, *, learn: bool) -> Vocabularies:
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
    check(
        made.joint or not (isinstance(cfg.model, ModelConfig) and cfg.model.share_embeddings),
        "model.share_embeddings is True, but the two sides have different vocabularies: use a joint one",
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
        check(
            learned.is_dir(),
            "this process has a different training corpus from process 0, which stored the vocabularies of its own: "
            "all must be the same",
        )
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
