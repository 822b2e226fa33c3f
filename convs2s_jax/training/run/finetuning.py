"""Fine-tuning: a new run begins with the parameters and the vocabularies of another one."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from convs2s_jax.core.config import to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run import distributed, restoring, run_folder
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.digest import digest_of_record

FREE = ("dropout", "dtype", "matmul_precision", "max_length")
"""Ends of names of fields of a model that do not change what its parameters mean; nor does `execution`."""


def vocabularies(cfg: Config) -> Vocabularies:
    """The vocabularies of the run that `training.finetune_from` names.

    Raises:
      UserError: there is no such run, its model is another than that of `cfg`, or its vocabularies are damaged.
    """
    workdir = Path(cfg.training.finetune_from)
    with _named():
        there, here = to_dict(run_folder.load_config(workdir).model), to_dict(cfg.model)
    odd = [f"{name} is {a!r} there and {b!r} here" for name, a, b in run_folder.differences(there, here, "model")]
    odd = [each for each in odd if not _is_free(each.split(" ", 1)[0])]
    if odd:
        raise UserError(
            f"training.finetune_from={workdir} holds another model: {'; '.join(odd[:5])}"
            f"{' ...' if len(odd) > 5 else ''}. Use the model of that run"
        )
    return vocabulary.load(run_folder.vocabulary(workdir))


def parameters(cfg: Config, known: Vocabularies, abstract: Tree, tell: Callable[[str], None]) -> Tree:
    """The parameters of the best checkpoint of the run that `training.finetune_from` names.

    Args:
      cfg: of the new run.
      known: its vocabularies.
      abstract: shapes, dtypes and shardings of the parameters, split for training.
      tell: gets sentences for the user.

    Raises:
      UserError: as `restoring.restore_items`; or the checkpoint has other vocabularies, or random parameters.
    """
    workdir = Path(cfg.training.finetune_from)

    def check(position: dict[str, Any]) -> None:
        with _named():
            run_folder.check_trained(workdir, known, position)

    folder = run_folder.checkpoints(workdir)
    params, position = restoring.restore_params(folder, abstract, step=None, check=check, tell=tell)
    digests = digest_of_record({"params": position["digests"]["params"]})
    distributed.agree("checkpoint of training.finetune_from", digests)
    tell(f"fine-tuning: parameters of step {position['step']} of {workdir}")
    return params


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Sentences about a workdir get the name of the field that gave it."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--workdir=", "training.finetune_from=")) from error


def _is_free(name: str) -> bool:
    return name.startswith("model.execution") or name.endswith(FREE)
