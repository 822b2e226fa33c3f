"""What a convolution inside a block has to offer: a kind is one config class and one record of functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import Array


class Convolution(NamedTuple):
    """A kind of convolution: C channels to the D = 2 C' that a GLU reads. In all, cfg is that of one layer.

    config: its config class: a field `kind` names it, `at(index)` is the config of one layer, counted from 0, and
        `check_inputs(inputs)` refuses C that does not suit it. Configs are static nodes of a tree
        (`jax.tree_util.register_static`), so that layers whose configs differ never share a loop (`convs2s.stack`).
    init(key, cfg, *, width, inputs, outputs, keep) -> params: K, C, D, and the share of x that dropout retains.
    centred(params, cfg, x [B, S, C], form) -> [B, S, D], for encoders: as long as x, zeros around it.
    causal(params, cfg, history [N, R, C], x [N, T, C], form) -> [N, T, D] and the history for what follows x.
    reach(cfg, width) -> R, the earlier positions that are seen.
    weights(cfg, *, width, inputs, outputs) -> numbers in its kernels; D biases come on top in all kinds.
    dense(params, cfg) -> the dense convolution of equal results, or None where there is none: tables of its products
        stand for the first layer of a decoder (`models.convs2s.lookup`).
    """

    config: type
    init: Callable[..., Any]
    centred: Callable[..., Array]
    causal: Callable[..., tuple[Array, Array]]
    reach: Callable[..., int]
    weights: Callable[..., int]
    dense: Callable[..., Affine | None]
