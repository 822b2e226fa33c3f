"""Optimisers: gradient transformations without a learning rate, which the host gives to each step."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from convs2s_jax.core.config import check, record
from convs2s_jax.nn.types import Array, Tree


@record
class NesterovConfig:
    """Nesterov's accelerated gradient (Sutskever et al. 2013), as in section 4.2."""

    kind: Literal["nesterov"] = "nesterov"
    momentum: float = 0.99

    def __post_init__(self) -> None:
        check(0 <= self.momentum < 1, f"momentum is {self.momentum}: use 0 or more and less than 1")


@record
class AdamConfig:
    """Adam (Kingma and Ba 2015), as for light and dynamic convolutions."""

    kind: Literal["adam"] = "adam"
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name, value in (("b1", self.b1), ("b2", self.b2)):
            check(0 <= value < 1, f"{name} is {value}: use 0 or more and less than 1")
        check(self.eps > 0, f"eps is {self.eps}: use more than 0")


class Optimizer(NamedTuple):
    """A kind of optimiser: its config class and the transformation made from it."""

    config: type
    transformation: Callable[[Any], optax.GradientTransformation]


def _nesterov(cfg: NesterovConfig) -> optax.GradientTransformation:
    """u <- g + m u;  step = g + m u.

    With b = -lr u this is fairseq's NAG with its buffer b, the correction at a change of the rate included.
    """
    return optax.trace(decay=cfg.momentum, nesterov=True)


def _adam(cfg: AdamConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.eps)


OPTIMIZERS = {"nesterov": Optimizer(NesterovConfig, _nesterov), "adam": Optimizer(AdamConfig, _adam)}


def transformation(cfg: Any) -> optax.GradientTransformation:
    """The optax transformation of an optimiser's config; updates are directions, to be multiplied by -lr."""
    return OPTIMIZERS[cfg.kind].transformation(cfg)


def clip_gradients(gradients: Tree, limit: float) -> tuple[Tree, Array]:
    """Renormalise gradients whose norm n exceeds `limit` (section 4.2): g * min(1, limit / (n + 1e-6)), as fairseq.

    Returns:
      The gradients and their norm before. A limit of 0 clips nothing.
    """
    norm = optax.tree.norm(gradients)
    if limit == 0.0:
        return gradients, norm
    factor = jnp.minimum(1.0, limit / (norm + 1e-6)).astype(norm.dtype)
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients), norm
