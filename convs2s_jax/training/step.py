"""One update: gradients of the summed loss, divided by all tokens, clipped, handed to the optimiser."""

from functools import partial
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import row_keys
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import optimizer
from convs2s_jax.training.config import TrainingConfig
from convs2s_jax.training.loss import Batch, LossSums, loss


@flax.struct.dataclass
class TrainState:
    """What an update changes. params: weight norm split; optimizer: optax state; step: updates done."""

    params: Tree
    optimizer: Tree
    step: Array


@flax.struct.dataclass
class StepSums:
    """What an update reports: loss sums, and the norm of the gradient per token before clipping."""

    loss: LossSums
    grad_norm: Array


def init(key: Key, model: ModelConfig, cfg: TrainingConfig, *, source: int, target: int) -> TrainState:
    """A fresh state for vocabularies of `source` and `target` entries."""
    params = encoder_decoder.init(key, model, source_vocabulary=source, target_vocabulary=target)
    params = weight_norm.split(params)
    state = optimizer.transformation(cfg.optimizer).init(params)
    return TrainState(params=params, optimizer=state, step=jnp.zeros((), jnp.int32))


def gradients(
    params: Tree, model: ModelConfig, cfg: TrainingConfig, batch: Batch, *, key: Key | None
) -> tuple[Tree, LossSums]:
    """Gradient of the summed loss with respect to directions and lengths, and the sums.

    Dropout of a row depends on `key` and the number of the row only.
    """
    keys = None if key is None else row_keys(key, len(batch.tgt))

    def summed(params: Tree) -> tuple[Array, LossSums]:
        sums = loss(weight_norm.merge(params), model, batch, smoothing=cfg.label_smoothing, key=keys)
        return sums.loss, sums

    return jax.grad(summed, has_aux=True)(params)


def apply(
    state: TrainState, cfg: TrainingConfig, grads: Tree, sums: LossSums, rate: Array
) -> tuple[TrainState, StepSums]:
    """Divide by the tokens of all batches summed, clip, step by -rate."""
    tokens = jnp.maximum(sums.tokens, 1)
    grads = jax.tree.map(lambda g: g / tokens.astype(g.dtype), grads)
    grads, norm = optimizer.clip(grads, cfg.clip)
    updates, moments = optimizer.transformation(cfg.optimizer).update(grads, state.optimizer, state.params)
    updates = jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates)
    params = optax.apply_updates(state.params, updates)
    return TrainState(params=params, optimizer=moments, step=state.step + 1), StepSums(loss=sums, grad_norm=norm)


class Step(NamedTuple):
    """The compiled parts of training.

    whole(state, batch, rate, key): an update from one batch.
    first(params, batch, key), add(total, params, batch, key): gradients and sums of one batch; added to those before.
    finish(state, total, rate): the update from accumulated gradients.
    """

    whole: "jax.stages.Wrapped"
    first: "jax.stages.Wrapped"
    add: "jax.stages.Wrapped"
    finish: "jax.stages.Wrapped"


def compile_steps(model: ModelConfig, cfg: TrainingConfig) -> Step:
    """Jitted functions of an update; each compiles once for each batch shape. The state given is consumed."""

    def first(params: Tree, batch: Batch, key: Key | None) -> tuple[Tree, LossSums]:
        return gradients(params, model, cfg, batch, key=key)

    def add(total: Tree, params: Tree, batch: Batch, key: Key | None) -> Tree:
        return jax.tree.map(jnp.add, total, first(params, batch, key))

    def finish(state: TrainState, total: Tree, rate: Array) -> tuple[TrainState, StepSums]:
        grads, sums = total
        return apply(state, cfg, grads, sums, rate)

    def whole(state: TrainState, batch: Batch, rate: Array, key: Key | None) -> tuple[TrainState, StepSums]:
        return finish(state, first(state.params, batch, key), rate)

    return Step(
        whole=partial(jax.jit, donate_argnums=0)(whole),
        first=jax.jit(first),
        add=partial(jax.jit, donate_argnums=0)(add),
        finish=partial(jax.jit, donate_argnums=0)(finish),
    )


def update(step: Step, state: TrainState, batches: list[Batch], rate: Array, key: Key) -> tuple[TrainState, StepSums]:
    """One update from one batch or several: the same as from all their rows at once.

    Args:
      step: of `compile_steps`.
      state: consumed.
      batches: of any shapes.
      rate: learning rate, float32.
      key: of this update; each batch has its own, folded from it.
    """
    keys = [jax.random.fold_in(key, i) for i in range(len(batches))]
    if len(batches) == 1:
        return step.whole(state, batches[0], rate, keys[0])
    total = step.first(state.params, batches[0], keys[0])
    for batch, k in zip(batches[1:], keys[1:], strict=True):
        total = step.add(total, state.params, batch, k)
    return step.finish(state, total, rate)
