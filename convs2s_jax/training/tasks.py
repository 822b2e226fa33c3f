"""The table of tasks: what each kind of model is trained to do."""

from typing import Any

from convs2s_jax.training import classifying, translating
from convs2s_jax.training.task import Task

TASKS: dict[str, Task] = {"encoder_decoder": translating.TASK, "classifier": classifying.TASK}


def of(model: Any) -> Task:
    """The task of a model's config."""
    return TASKS[model.kind]
