"""The table of tasks: what each kind of model is trained to do."""

from typing import Any

from convs2s_jax.training.run import classification_task as classifying
from convs2s_jax.training.run import translation_task as translating
from convs2s_jax.training.run.task import Task

TASKS: dict[str, Task] = {"encoder_decoder": translating.TASK, "classifier": classifying.TASK}


def of(model: Any) -> Task:
    """The task of a model's config."""
    return TASKS[model.kind]
