"""One update: gradients of the summed loss, divided by all tokens, clipped, handed to the optimiser."""

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.dropout import row_keys
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import optimizer
from convs2s_jax.training.loss import Batch, LossSums
from convs2s_jax.training.run import task_table as tasks
from convs2s_jax.training.run.config import AnyModel, TrainingConfig


@flax.struct.dataclass
class TrainState:
    """What an update changes. params: weight norm split; optimizer: optax state; step: updates done."""

    params: Tree
    optimizer: Tree
    step: Array


@flax.struct.dataclass
class StepSums:
    """What an update reports.

    loss: sums; grad_norm: norm of the gradient per token before clipping; finite: for each parameter, in the order of
    the tree, whether its gradient was.
    """

    loss: LossSums
    grad_norm: Array
    finite: Array


def init(key: Key, model: AnyModel, cfg: TrainingConfig, *, source: int, target: int) -> TrainState:
    """A fresh state for vocabularies of `source` and `target` entries."""
    task = tasks.of(model)
    params = task.split(task.init(key, model, source=source, target=target), model)
    state = optimizer.transformation(cfg.optimizer).init(params)
    return TrainState(params=params, optimizer=state, step=jnp.zeros((), jnp.int32))


def gradients(
    params: Tree,
    model: AnyModel,
    cfg: TrainingConfig,
    batch: Batch,
    *,
    first: Array | int = 0,
    shards: int = 1,
    gather: Callable[[Tree], Tree] = lambda params: params,
    key: Key | None,
) -> tuple[Tree, LossSums]:
    """Gradient of the summed loss with respect to directions and lengths, and the sums.

    Args:
      params: weight norm split.
      model, cfg: configuration.
      batch: rows of a batch, all or a part.
      first: number of the first of them in the whole batch.
      shards: devices over which the rows are spread within this call.
      gather: applied to merged kernels before their use; see `training.sharding`.
      key: for dropout, which depends on it and on a row's number in the whole batch only; None for none.
    """
    B = len(batch.tgt)
    keys = None if key is None else row_keys(key, B, first)
    loss = tasks.of(model).loss

    def summed(params: Tree) -> tuple[Array, LossSums]:
        merged = gather(weight_norm.merge(params))
        sums = loss(merged, model, batch, smoothing=cfg.label_smoothing, shards=shards, key=keys)
        return sums.loss, sums

    return jax.grad(summed, has_aux=True)(params)


def apply(
    state: TrainState, cfg: TrainingConfig, grads: Tree, sums: LossSums, rate: Array
) -> tuple[TrainState, StepSums]:
    """Divide by the tokens of all batches summed, clip, step by -rate.

    Where bad steps are skipped, one whose loss or gradient is not finite changes nothing but the count of steps.
    """
    tokens = jnp.maximum(sums.tokens, 1)
    grads = jax.tree.map(lambda g: g / tokens.astype(g.dtype), grads)
    finite = jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)])
    grads, norm = optimizer.clip(grads, cfg.clip)
    updates, moments = optimizer.transformation(cfg.optimizer).update(grads, state.optimizer, state.params)
    updates = jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates)
    params = optax.apply_updates(state.params, updates)
    if cfg.skip_bad_steps:
        good = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        old, new = (state.params, state.optimizer), (params, moments)
        params, moments = jax.tree.map(lambda a, b: jnp.where(good, b, a), old, new)
    after = TrainState(params=params, optimizer=moments, step=state.step + 1)
    return after, StepSums(loss=sums, grad_norm=norm, finite=finite)


class Step(NamedTuple):
    """The compiled parts of training; see `training.parallel`.

    first(params, batch, key): gradients and sums of one batch.
    add(total, params, batch, key): added to those of batches before; consumes the total.
    finish(state, total, rate): the update from them; consumes the state. A program of its own, which no batch shape
    compiles anew; nothing is lost by that, as clipping waits for all gradients anyway.
    """

    first: Callable[..., tuple[Tree, LossSums]]
    add: Callable[..., tuple[Tree, LossSums]]
    finish: Callable[..., tuple[TrainState, StepSums]]


def update(step: Step, state: TrainState, batches: list[Batch], rate: Array, key: Key) -> tuple[TrainState, StepSums]:
    """One update from one batch or several: the same as from all their rows at once.

    Args:
      step: of `parallel.compile_steps`.
      state: consumed.
      batches: of any shapes.
      rate: learning rate, float32.
      key: of this update; each batch has its own, folded from it.
    """
    keys = [jax.random.fold_in(key, i) for i in range(len(batches))]
    total = step.first(state.params, batches[0], keys[0])
    for batch, k in zip(batches[1:], keys[1:], strict=True):
        total = step.add(total, state.params, batch, k)
    return step.finish(state, total, rate)
