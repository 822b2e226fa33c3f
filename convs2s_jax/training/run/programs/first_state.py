"""Initialises the training state on one device with two programs.

One derives all keys, the other samples all parameters in one loop.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.compiler_options import OnCpu, unless_set
from convs2s_jax.nn.draws import FOR_KEYS, BatchedInit, host
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import dispatch
from convs2s_jax.training.run.config import AnyModel, TrainingConfig
from convs2s_jax.training.run.programs.configured import state_of
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import TrainState


class FirstState:
    """key -> state, by two programs.

    Attributes:
      keys: key -> the keys of all samples, for the host.
      state: (key, keys of all samples) -> state, for the device.
    """

    def __init__(
        self,
        model: AnyModel,
        training: TrainingConfig,
        *,
        source: int,
        target: int,
        mesh: Mesh | None = None,
        layout: Tree | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
          model: its configuration.
          training: only its optimiser is used.
          source, target: sizes of the vocabularies.
          mesh: of one device.
          layout: shardings of the state.

        Raises:
          NestedDrawError: see `BatchedInit`.
        """
        batched = BatchedInit(partial(task_of(model).init, cfg=model, source=source, target=target))

        def from_keys(key: Key, keys: Array) -> TrainState:
            return state_of(batched.parameters(key, keys), model, training)

        quickly = dispatch.jit(batched.keys, compiler_options=unless_set(FOR_KEYS))
        self.keys: Any = OnCpu(dispatch.jit(batched.keys), quickly, is_cpu=lambda: True)
        self.state: Any = dispatch.jit_once(from_keys, mesh, out_shardings=layout)

    def __call__(self, key: Key) -> TrainState:
        """The state."""
        if isinstance(key, jax.core.Tracer):
            return self.state(key, self.keys(key))
        return self.state(key, np.asarray(self.keys(jax.device_put(key, host()))))

    def lower(self, key: Key) -> Any:
        """Lower the program of the device only; that of the keys is small."""
        keys = jax.eval_shape(self.keys, key)
        return self.state.lower(key, jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=key.sharding))
