"""A new run starts from the vocabularies, or from the parameters too, of another run."""

from contextlib import suppress
from functools import partial
from pathlib import Path

from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.core.places import scheme_of
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import finetuning, run_folder, store_copy
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.run.checkpoints.digest import digest_of_record
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.processes import distributed


def corpus_beside(folder: str) -> DataConfig | None:
    """Return the corpus of the run that owns these vocabularies; None without a config.json next to their folder."""
    if scheme_of(folder):
        return None
    with suppress(UserError):
        return run_folder.load_config(Path(folder).absolute().parent).data
    return None


def compare_sides(there: DataConfig, here: DataConfig, given: str, *, joint: bool, tell: Tell) -> None:
    """Check that the sides of another run are not reversed; report different names.

    Args:
      there: corpus of the other run.
      here: corpus of this run.
      given: field and value that specify the other run, for messages.
      joint: whether one vocabulary serves both sides.
      tell: called with a sentence for the user.

    Raises:
      UserError: they are reversed, and each side has its own vocabulary.
    """
    pairs = [(there.src, here.src), (there.tgt, here.tgt)]
    odd = [f"'{a}' there and '{b}' here" for a, b in pairs if a and b and a != b]
    is_reversed = len(odd) == 2 and (there.src, there.tgt) == (here.tgt, here.src)
    check(
        joint or not is_reversed,
        f"{given} belongs to a run from '{there.src}' to '{there.tgt}', but this one is from '{here.src}' to "
        f"'{here.tgt}': each side would use the vocabulary of the other; swap data.src and data.tgt, or leave the "
        "field out",
    )
    if odd and not (joint and is_reversed and given.startswith("data.")):
        tell(f"{given}: that run names its sides differently, {' and '.join(odd)}")


FIELD = "training.finetune_from"
STILL_TRAINING = "all must be the same; if that run is still training, run the command again after it has ended"
FREE = ("dropout", "dtype", "matmul_precision", "max_length")
"""Suffixes of model fields that do not change the meaning of the parameters; neither does `execution`."""


def vocabularies(cfg: Config, tell: Tell) -> Vocabularies:
    """Load the vocabularies of the run in `training.finetune_from`.

    Args:
      cfg: of the new run.
      tell: called with sentences for the user.

    Raises:
      UserError: the run does not exist, its model differs from that of `cfg`, its sides are reversed, or its
        vocabularies are damaged.
    """
    with store_copy.reading(cfg.training.finetune_from, tell, flag=FIELD) as (workdir, told):
        other = run_folder.load_config(workdir, given_as=FIELD)
        odd = run_folder.differences(to_dict(other.model), to_dict(cfg.model), free=_is_free, path="model")
        check(not odd, f"{FIELD}={workdir} contains another model: {odd}. Use the model of that run")
        found = vocabulary.load(run_folder.vocabulary(workdir))
        finetuning.compare_sides(other.data, cfg.data, f"{FIELD}={workdir}", joint=found.joint, tell=told)
    return found


def parameters(cfg: Config, known: Vocabularies, abstract: Tree, tell: Tell) -> tuple[Tree, str]:
    """Load the parameters of the best checkpoint of the run in `training.finetune_from`, and say which that is.

    Args:
      cfg: of the new run.
      known: its vocabularies.
      abstract: shapes, dtypes and shardings of the parameters, split for training.
      tell: called with sentences for the user.

    Raises:
      UserError: as `restoring.restore_items`; or the checkpoint has other vocabularies, or random parameters.
    """
    with store_copy.reading(cfg.training.finetune_from, tell, flag=FIELD) as (workdir, told):
        trained = partial(run_folder.check_trained, workdir, known, given_as=FIELD)
        folder = run_folder.checkpoints(workdir)
        metric = run_folder.load_config(workdir, given_as=FIELD).training.best_metric
        params, position = restoring.restore_params(
            folder, abstract, step=None, metric=metric, check=trained, tell=told
        )
        digest = digest_of_record({"params": position["digests"]["params"]})
        distributed.agree(f"checkpoint of {FIELD}", digest, remedy=STILL_TRAINING)
        origin = f"step {position['step']} of {cfg.training.finetune_from}"
        told(f"fine-tuning: parameters of {origin}")
    return params, origin


def _is_free(name: str) -> bool:
    return name.startswith("model.execution") or name.endswith(FREE)
