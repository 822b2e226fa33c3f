"""States before the first update, made as training makes them, in a third of the time of separate operations."""

from functools import partial

import jax

from convs2s_jax.training.run.config import AnyModel, TrainingConfig
from convs2s_jax.training.run.configured import state_of
from convs2s_jax.training.run.first_state import FirstState
from convs2s_jax.training.run.task_table import task_of
from convs2s_jax.training.step import TrainState


def first_state(key: jax.Array, model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """That of `configured.fresh_state`."""
    init = partial(task_of(model).init, cfg=model, source=source, target=target)
    return FirstState(init, partial(state_of, model=model, training=training))(key)
