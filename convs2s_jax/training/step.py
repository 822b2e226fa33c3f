"""One update: gradients of a summed loss are divided by the count, clipped, and passed to an optimiser.

The loss and the optimiser are arguments. Nothing here knows what is trained, on which data, or how runs are organised;
`training.parallel` compiles these functions for a mesh.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from convs2s_jax.nn import struct, weight_norm
from convs2s_jax.nn.keys import check_key, row_keys
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import dispatch
from convs2s_jax.training.batch import Batch, check_batch, is_readable
from convs2s_jax.training.optimizer import clip_gradients


@struct.dataclass
class LossSums:
    """Sums over target tokens. They are added over batches and devices, and divided once.

    Attributes:
      loss: the objective, in nats.
      nll: negative log-likelihood without smoothing, in nats.
      tokens: number of real target tokens, end symbols included.
    """

    loss: Array
    nll: Array
    tokens: Array


BatchT = TypeVar("BatchT")
"""A batch: any pytree with rows on axis 0 of every leaf."""
SumsT = TypeVar("SumsT", bound=Any)
"""What a loss returns, such as `LossSums`: a pytree of sums over the rows of a batch. `loss` is minimised, divided by
`tokens` once both are added over all batches and devices."""
Loss = Callable[[Tree, BatchT, Key | None], SumsT]
"""loss(params, batch, key) -> sums. params: merged kernels; key: an array [B] of keys, one per row, or None without
dropout. `training.loss.loss` accepts such an array; `nn.dropout.split_key` splits each of its keys."""


@struct.dataclass
class TrainState:
    """State of training, which an update replaces.

    Attributes:
      params: trained parameters; with weight normalisation, kernels are split into direction and length.
      optimizer: state of the optax transformation.
      step: number of updates done.
    """

    params: Tree
    optimizer: Tree
    step: Array


@struct.dataclass
class StepSums(Generic[SumsT]):
    """The report of an update.

    Attributes:
      loss: the sums of the loss over all rows of the update.
      grad_norm: norm of the averaged gradient before clipping.
      finite: for each parameter, in the order of the tree, whether its gradient was finite.
    """

    loss: SumsT
    grad_norm: Array
    finite: Array


def init_state(
    params: Tree, optimizer: optax.GradientTransformation, *, weight_normalisation: bool = True
) -> TrainState:
    """Return the state before the first update, with a copy of these parameters: updates consume their state.

    Args:
      params: as `convs2s_jax.split_kernels` returns them.
      optimizer: as in `apply_gradients`.
      weight_normalisation: False to train plain kernels, where the model's kind uses weight normalisation.

    Raises:
      ValueError: kernels that weight normalisation trains as direction and length are not split.
      TypeError: params are the `optax.LookaheadParams` of an optimiser whose gradients are those of one part.
    """
    if isinstance(params, optax.LookaheadParams):
        raise TypeError("params are LookaheadParams, but an update has gradients of one set of parameters: pass these")
    if weight_normalisation and weight_norm.needs_split(params):
        raise ValueError(
            "kernels of params are not split into direction and length: pass convs2s_jax.split_kernels(params, cfg), "
            "or weight_normalisation=False to train them as they are"
        )
    own, begun = jax.tree.map(jnp.copy, (params, optimizer.init(params)))  # some optimisers keep an array twice
    return TrainState(params=own, optimizer=begun, step=jnp.zeros((), jnp.int32))


def gradients(
    loss: Loss[BatchT, SumsT], params: Tree, batch: BatchT, *, first: Array | int = 0, key: Key | None
) -> tuple[Tree, SumsT]:
    """Gradient of the summed loss with respect to its parameters, and the sums.

    Args:
      loss: as in `Loss`.
      params: merged parameters.
      batch: rows of a batch, all or some.
      first: index of the first of these rows in the whole batch.
      key: for dropout; each row gets its own key, from `key` and the row's index in the whole batch. None: no dropout.

    Raises:
      ValueError: the leaves of the batch do not have the same number of rows.
      TypeError: the loss returned no sums.
    """
    shapes = [leaf.shape for leaf in jax.tree.leaves(batch)]
    if not shapes or any(shape[:1] != shapes[0][:1] or not shape for shape in shapes):
        raise ValueError(f"the leaves of the batch have shapes {shapes}: each needs the same number of rows on axis 0")
    keys = None if key is None else row_keys(key, shapes[0][0], first)

    def summed(params: Tree) -> tuple[Array, SumsT]:
        sums = loss(params, batch, keys)
        if not (hasattr(sums, "loss") and hasattr(sums, "tokens")):
            kind = "an array" if isinstance(sums, jax.Array) else f"a {type(sums).__name__}"
            raise TypeError(f"the loss returned {kind}: expected sums with `loss` and `tokens`, such as `LossSums`")
        return sums.loss, sums

    return jax.grad(summed, has_aux=True)(params)


def apply_gradients(
    state: TrainState,
    optimizer: optax.GradientTransformation,
    grads: Tree,
    sums: SumsT,
    rate: Array | None,
    *,
    clip: float = 0.0,
    skip_bad_steps: bool = False,
) -> tuple[TrainState, StepSums[SumsT]]:
    """Divide by the total count, pull through weight normalisation, clip, and apply the optimiser.

    Args:
      state: before the update.
      optimizer: an optax transformation whose update needs gradients, its state, parameters and the value of the loss
        per token; so not `optax.lbfgs`, which also evaluates the loss elsewhere, nor `optax.lookahead`, which has two
        copies of the parameters.
      grads: summed gradients with respect to merged parameters.
      sums: sums of the loss for the same rows; `tokens` is the divisor (at least 1).
      rate: the learning rate, by which the updates u are multiplied before they are added: params + rate * u. Use it
        with the transformations of `training.optimizer`, or with `optax.adam(1.0)`, whose own rate is 1. None for
        params + u, with a transformation that includes the rate, such as `optax.adam(1e-3)`.
      clip: maximum gradient norm; larger gradients are scaled down to it. 0 for no clipping.
      skip_bad_steps: whether an update whose loss or gradient is not finite only raises the step count.

    Raises:
      TypeError: the optimiser's update needs other arguments.
    """
    count = jnp.maximum(sums.tokens, 1)
    grads = jax.tree.map(lambda g: g / count.astype(g.dtype), grads)
    _, pull = jax.vjp(weight_norm.merge, state.params)
    (grads,) = pull(grads)
    finite = jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)])
    grads, norm = clip_gradients(grads, clip)
    value = sums.loss / count.astype(sums.loss.dtype)
    updating = optax.with_extra_args_support(optimizer).update
    try:
        updates, after = updating(grads, state.optimizer, state.params, value=value)
    except (TypeError, AttributeError) as error:
        raise TypeError(
            "an update has gradients, the optimiser's state, parameters and the value of the loss, and this optimiser "
            f"needs something else: use another one ({error})"
        ) from error
    if rate is not None:
        updates = jax.tree.map(lambda u: jnp.asarray(rate, u.dtype) * u, updates)
    params = optax.apply_updates(state.params, updates)
    if skip_bad_steps:
        good = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        old, new = (state.params, state.optimizer), (params, after)
        params, after = jax.tree.map(lambda a, b: jnp.where(good, b, a), old, new)
    changed = TrainState(params=params, optimizer=after, step=state.step + 1)
    return changed, StepSums(loss=sums, grad_norm=norm, finite=finite)


class Step(NamedTuple, Generic[BatchT, SumsT]):
    """Three compiled functions that make up an update, as `training.parallel.compile_steps` returns them.

    `update` calls `first` for the first batch, `add` for each further one, and `finish` once at the end. They pass on a
    total: the gradients with respect to merged parameters and the sums of the batches so far.

    Attributes:
      first: (params, batch, key) -> the total of one batch.
      add: (total, params, batch, key) -> the total with one more batch; the old total's buffers are reused.
      finish: (state, total, rate) -> the state after the optimiser's step, and the report of the update; the old
        state's buffers are reused. It is a separate program, so that new batch shapes do not compile it again. That
        costs no time: clipping has to wait for all gradients anyway.
    """

    first: Callable[[Tree, BatchT, Key | None], tuple[Tree, SumsT]]
    add: Callable[[tuple[Tree, SumsT], Tree, BatchT, Key | None], tuple[Tree, SumsT]]
    finish: Callable[[TrainState, tuple[Tree, SumsT], ArrayLike | None], tuple[TrainState, StepSums[SumsT]]]


Finish = Callable[[TrainState, tuple[Tree, SumsT], Array | None], tuple[TrainState, StepSums[SumsT]]]
"""`Step.finish` before it is compiled."""


fold_in = dispatch.jit(jax.random.fold_in)
"""`jax.random.fold_in` compiled into one program, for loops: its five operations, called one by one, take eight times
as long (0.27 ms on one Zen 3 core), while the device may be idle."""


def update(
    step: Step[BatchT, SumsT], state: TrainState, batches: Sequence[BatchT], rate: ArrayLike | None, key: Key | None
) -> tuple[TrainState, StepSums[SumsT]]:
    """Do one update with one or several batches, equal to an update with all their rows in one batch.

    Args:
      step: as `parallel.compile_steps` returns it.
      state: consumed.
      batches: one or more, of any shapes. `check_batch` checks those of class `Batch` in the memory of the host.
      rate: learning rate, float32, a factor on the optimiser's updates, which are added as in optax; None for an
        optimiser that includes the rate, such as `optax.adam(1e-3)` (`apply_gradients`).
      key: for dropout; each batch gets its own key from it. None for no dropout.

    Raises:
      TypeError, ValueError: batches is not a list, or is empty; key is not a key; or as in `check_batch`.
    """
    if hasattr(batches, "_fields") or not isinstance(batches, Sequence):
        raise TypeError(f"batches is a {type(batches).__name__}: pass a list of one or more batches, such as [batch]")
    if not batches:
        raise ValueError("an update needs at least one batch")
    if key is not None:
        check_key(key)
    for batch in batches:
        if isinstance(batch, Batch) and is_readable(batch):
            check_batch(batch, params=state.params)
    keys = [None if key is None else fold_in(key, i) for i in range(len(batches))]
    total = step.first(state.params, batches[0], keys[0])
    for batch, batch_key in zip(batches[1:], keys[1:], strict=True):
        total = step.add(total, state.params, batch, batch_key)
    return step.finish(state, total, rate)
