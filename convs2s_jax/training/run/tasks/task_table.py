"""The tasks: what each kind of model is trained to do.

A task is a module with the functions that `translation_task` has: `init`, `split` and `batch_loss` of parameters,
`build_vocabularies` and `check_targets` of text, `predict` and `scores` of a validation.
"""

from typing import Any

from convs2s_jax.training.run.config import AnyModel
from convs2s_jax.training.run.tasks import classification_task, translation_task

TASKS = {"encoder_decoder": translation_task, "classifier": classification_task}


def task_of(model: AnyModel) -> Any:
    """The task of a model's configuration."""
    return TASKS[model.kind]
