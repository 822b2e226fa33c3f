"""The table of tasks: what each kind of model is trained to do."""

from typing import Any

from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run.config import AnyModel
from convs2s_jax.training.run.tasks import classification_task, translation_task
from convs2s_jax.training.run.tasks.task import Task

_TRANSLATION: Task[ModelConfig] = translation_task
_CLASSIFICATION: Task[ClassifierConfig] = classification_task

TASKS: dict[str, Task[Any]] = {"encoder_decoder": _TRANSLATION, "classifier": _CLASSIFICATION}


def task_of(model: AnyModel) -> Task[Any]:
    """The task of a model's configuration."""
    return TASKS[model.kind]
