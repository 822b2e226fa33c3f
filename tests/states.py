"""States before the first update, made as training makes them, in a third of the time of separate operations."""

import jax

from convs2s_jax.training.run.config import AnyModel, TrainingConfig
from convs2s_jax.training.run.programs import FirstState
from convs2s_jax.training.step import TrainState


def first_state(key: jax.Array, model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """That of `configured.fresh_state`."""
    return FirstState(model, training, source=source, target=target)(key)
