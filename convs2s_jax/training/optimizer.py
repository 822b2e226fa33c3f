"""Optimisers: gradient transformations without a learning rate, which the host passes to each step.

The updates u of a `transformation` are added, as in optax: the step computes params + rate * u
(`step.apply_gradients`).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from convs2s_jax.core.config import check, record
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.nn.weight_norm import Normed


@record
class NesterovConfig:
    """Nesterov's accelerated gradient (Sutskever et al. 2013), as in section 4.2; fairseq's `nag`.

    Attributes:
      momentum: factor of the previous step, in [0, 1).
      weight_decay: before each update, every trained array (directions and lengths of kernels, biases, tables) is
        multiplied by 1 - learning rate * weight_decay. 0 disables it.
    """

    kind: Literal["nesterov"] = "nesterov"
    momentum: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check(0 <= self.momentum < 1, f"momentum is {self.momentum}: use 0 or more and less than 1")
        _check_decay(self.weight_decay)


@record
class _AdamConfig:
    """Config fields that both kinds of Adam share.

    Attributes:
      b1: decay rate of the mean of gradients, in [0, 1).
      b2: decay rate of the mean of squared gradients, in [0, 1).
      eps: added to the root of the mean of squares.
      weight_decay: before each update, every trained array is multiplied by 1 - learning rate * weight_decay. 0
        disables it.
    """

    kind: str
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("b1", "b2"):
            value = getattr(self, name)
            check(0 <= value <= 0.9999999, f"{name} is {value}: use 0 to 0.9999999, since float32 rounds more to 1")
        check(self.eps >= 1.2e-38, f"eps is {self.eps}: use 1.2e-38 or more, since float32 rounds less to 0")
        _check_decay(self.weight_decay)


@record
class AdamConfig(_AdamConfig):
    """Adam (Kingma and Ba 2015), as for light and dynamic convolutions, computed as fairseq's `adam`.

    The order of computation follows the end of section 2 of the paper: eps is added before the bias is corrected.
    """

    kind: Literal["adam"] = "adam"


@record
class AdamWConfig(_AdamConfig):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) as in optax, with the usual defaults.

    The decay is multiplied by the learning rate, as in PyTorch and optax; in the paper it only follows the schedule.
    Every trained array decays, as with `adam`. The bias of the mean of squares is corrected before eps is added.
    """

    kind: Literal["adamw"] = "adamw"
    b2: float = 0.999
    weight_decay: float = 0.01


AnyOptimizer = NesterovConfig | AdamConfig | AdamWConfig
"""The config of any kind of optimiser, identified by `kind`."""


def _check_decay(weight_decay: float) -> None:
    check(weight_decay >= 0, f"weight_decay is {weight_decay}: use 0 or more, such as 1e-4")


def _adam(cfg: AdamConfig) -> optax.GradientTransformation:
    """m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  u = sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps).

    optax adds eps to the root of the corrected v. For gradients near eps the update differs: with b2 = 0.98, the first
    one by a factor of up to 7. The state is optax's.
    """
    like = optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2)

    def update(grads: Tree, state: optax.ScaleByAdamState, _params: Tree | None = None) -> tuple[Tree, Tree]:
        count = state.count + 1
        mu = jax.tree.map(lambda g, m: cfg.b1 * m + (1 - cfg.b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: cfg.b2 * v + (1 - cfg.b2) * g * g, grads, state.nu)
        t = count.astype(jnp.float32)
        size = jnp.sqrt(1 - jnp.float32(cfg.b2) ** t) / (1 - jnp.float32(cfg.b1) ** t)
        updates = jax.tree.map(lambda m, v: size.astype(m.dtype) * m / (jnp.sqrt(v) + cfg.eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(like.init, update)


def transformation(cfg: AnyOptimizer) -> optax.GradientTransformation:
    """Return the optax transformation of an optimiser's config. Multiply its updates by the rate, then add them.

    They are -(v + d p) with the optimiser's directions v, parameters p and weight decay d, which is decoupled:
    p - rate (v + d p) = (1 - rate d) p - rate v. The state is that of the directions; `optax.chain` would add to it.

    Nesterov:  u <- g + m u;  v = g + m u. With b = -lr u this is fairseq's NAG with its buffer b, the correction at a
    change of the rate included. After an update with rate 0, as after the end of a cosine whose minimum is 0, u remains
    while b is 0.
    """
    match cfg:
        case NesterovConfig():
            inner = optax.trace(decay=cfg.momentum, nesterov=True)
        case AdamWConfig():
            inner = optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.eps)
        case AdamConfig():
            inner = _adam(cfg)
    decay = cfg.weight_decay

    def update(grads: Tree, state: Tree, params: Tree | None = None) -> tuple[Tree, Tree]:
        if decay and params is None:
            raise ValueError("weight decay needs the parameters: call update(grads, state, params)")
        directions, state = inner.update(grads, state, params)
        if decay:
            directions = jax.tree.map(lambda v, p: v + decay * p, directions, params)
        return jax.tree.map(jnp.negative, directions), state

    return optax.GradientTransformation(inner.init, update)


def muon_axes(params: Tree) -> Tree:
    """Say which arrays Muon orthogonalises: `optax.contrib.muon(rate, muon_weight_dimension_numbers=muon_axes)`.

    Muon (Jordan 2024) is for matrices of hidden layers, inputs x outputs: kernels of `Affine`, except the softmax, or
    their directions v, [C, D] of linear maps and [K, C, D] of convolutions, with K C inputs. Left alone, optax takes
    every array with two axes for one, lengths g [1, D] and tables too, and leaves convolutions to Adam.

    Returns:
      `optax.contrib.MuonDimensionNumbers` in place of matrices, and None, for Adam, in place of all other arrays.
    """

    def each(path: tuple[Any, ...], node: Tree) -> Tree:
        if not isinstance(node, Affine) or path_of(path).endswith("output"):
            return None
        kernel = node.w.v if isinstance(node.w, Normed) else node.w
        axes = optax.contrib.MuonDimensionNumbers(tuple(range(kernel.ndim - 1)), kernel.ndim - 1)
        return jax.tree.map(lambda x: axes if x is kernel else None, node)

    return jax.tree_util.tree_map_with_path(each, params, is_leaf=lambda x: isinstance(x, Affine))


def clip_gradients(gradients: Tree, limit: float) -> tuple[Tree, Array]:
    """Rescale gradients whose norm n exceeds `limit` (section 4.2): g * min(1, limit / (n + 1e-6)), as in fairseq.

    Returns:
      The gradients, and their norm before clipping. A limit of 0 clips nothing.
    """
    norm = optax.tree.norm(gradients)
    if limit == 0.0:
        return gradients, norm
    factor = jnp.minimum(1.0, limit / (norm + 1e-6)).astype(norm.dtype)
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients), norm
