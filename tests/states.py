"""States before the first update, made in one program: separate operations take three times as long."""

from functools import partial

import jax

from convs2s_jax.training.run.config import AnyModel, TrainingConfig
from convs2s_jax.training.run.programs import fresh_state
from convs2s_jax.training.step import TrainState


def first_state(key: jax.Array, model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """That of `programs.fresh_state`."""
    return jax.jit(partial(fresh_state, model=model, training=training, source=source, target=target))(key)
