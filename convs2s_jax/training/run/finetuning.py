"""A new run starts from the vocabularies, or from the parameters too, of another run."""

from functools import partial

from convs2s_jax.core.config import check, differences
from convs2s_jax.core.errors import Tell
from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import run_folder, store_copy
from convs2s_jax.training.run.checkpoints import restoring
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.processes import distributed

FIELD = "training.finetune_from"
FREE = ("dropout", "dtype", "matmul_precision", "max_length")
"""Suffixes of model fields that do not change the meaning of the parameters; neither does `execution`."""


def vocabularies(cfg: Config) -> Vocabularies:
    """Load the vocabularies of the run in `training.finetune_from`; `cfg` is of the new run.

    Raises:
      UserError: the run does not exist, its model differs from that of `cfg`, its sides are reversed and each has its
        own vocabulary, or its vocabularies are damaged.
    """
    with store_copy.opened(cfg.training.finetune_from, flag=FIELD) as workdir:
        other = run_folder.load_config(workdir, given_as=FIELD)
        odd = differences(
            other.model,
            cfg.model,
            free=lambda name: name.startswith("model.execution") or name.endswith(FREE),
            path="model",
        )
        check(not odd, f"{FIELD}={workdir} contains another model: {odd}. Use the model of that run")
        found = vocabulary.load(run_folder.vocabulary(workdir))
        there, here = other.data, cfg.data
        check(
            found.joint or here.src == here.tgt or (there.src, there.tgt) != (here.tgt, here.src),
            f"{FIELD}={workdir} belongs to a run from '{there.src}' to '{there.tgt}', but this one is from "
            f"'{here.src}' to '{here.tgt}': each side would use the vocabulary of the other; swap data.src and "
            "data.tgt, or leave the field out",
        )
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
        found, position = restoring.restore_items(
            folder, {"params": abstract}, step=None, metric=metric, check=trained, tell=told
        )
        remedy = "all must be the same; if that run is still training, run the command again after it has ended"
        distributed.agree(f"checkpoint of {FIELD}", position["digests"]["params"], remedy=remedy)
        origin = f"step {position['step']} of {cfg.training.finetune_from}"
        told(f"fine-tuning: parameters of {origin}")
    return found["params"], origin
