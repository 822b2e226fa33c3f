"""The tasks: what each kind of model is trained to do. Each is a module with the functions of `Task`."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.data.config import DataConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training.run.config import AnyModel, Config
from convs2s_jax.training.run.inputs import Split
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.tasks import classification_task, translation_task
from convs2s_jax.training.step import Batch, LossSums

M = TypeVar("M", contravariant=True)
"""Config of the model: `kind` names its task, `max_source` and `max_target` are the maximum lengths in tokens."""


class Task(Protocol[M]):
    """How models of one kind are initialised, trained and evaluated."""

    def init(self, key: Key, cfg: M, *, source: int, target: int) -> Tree:
        """New parameters for vocabularies of `source` and `target` entries."""

    def split(self, params: Tree, cfg: M) -> Tree:
        """The trained parameters: with weight normalisation, kernels are split into direction and length."""

    def batch_loss(
        self, params: Tree, cfg: M, batch: Batch, *, smoothing: float = ..., key: Key | None = ...
    ) -> LossSums:
        """Return the summed loss of a batch; arguments as in `training.loss.loss`."""

    def build_vocabularies(self, cfg: DataConfig, text: ParallelText, seed: int) -> Vocabularies:
        """Learn the vocabularies from the training text."""

    def check_targets(self, split: Split, vocabularies: Vocabularies) -> None:
        """Raise UserError if a line of a split cannot be a target."""

    def predict(
        self,
        params: Tree,
        model: M,
        cfg: Config,
        mesh: Mesh,
        split: Split,
        vocabularies: Vocabularies,
        *,
        name: str,
        interrupts: Interrupts,
    ) -> list[str]:
        """Return the model's output for each line of a split. Each process computes its share, and all get all."""

    def programs(
        self, params: Tree, model: M, cfg: Config, mesh: Mesh, split: Split
    ) -> dict[tuple[int, ...], Callable[[], Lowered]]:
        """Return functions that trace programs of `predict`, by the shapes that tell them apart, to compile them ahead.

        Shapes of the merged parameters are enough. Programs may be missing, and are then compiled when they are called.
        """

    def scores(self, cfg: Config, split: Split, outputs: list[str], *, details: bool = ...) -> dict[str, float]:
        """The scores of a validation, by name; with `details` those that only the final test has, too."""


_TRANSLATION: Task[ModelConfig] = translation_task
_CLASSIFICATION: Task[ClassifierConfig] = classification_task

TASKS: dict[str, Task[Any]] = {"encoder_decoder": _TRANSLATION, "classifier": _CLASSIFICATION}


def task_of(model: AnyModel) -> Task[Any]:
    """The task of a model's configuration."""
    return TASKS[model.kind]
