"""Execution of a stack of layers, one by one or as a `lax.scan` over runs of equal layers, with the same results."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.models.convs2s.layers import ConvLayer, layer_channels
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.sharded_params import any_sharded, gather
from convs2s_jax.nn.types import Array, Tree

Layer = Callable[[ConvLayer, DenseForm, Tree, Sequence[Array]], tuple[Array, Tree]]
"""One layer: (its entry in the list, the form of its convolution, its item, the outputs of the layers before) -> its
output, and a tree of further results. The item contains its parameters and further inputs."""
BoundLayer = Callable[[Tree, Sequence[Array]], tuple[Array, Tree]]
"""A `Layer` with its first two arguments bound."""


def runs(layers: Sequence[ConvLayer], marks: Sequence[Any], shortest: int) -> list[range]:
    """Split a layer list into single layers and runs of equal adjacent layers, each of which can be one loop.

    All layers of a run have the same channels, width and inputs. Each takes its residual from the layer just below or
    has none. No later layer takes its residual from inside the run, because a loop only returns its last output.

    Args:
      layers: the list.
      marks: one value per layer that must also be equal within a run, such as whether the layer attends.
      shortest: runs with fewer layers are split into single layers; 0 splits all runs.
    """
    size = layer_channels(layers)
    reached = {i - layer.skip for i, layer in enumerate(layers) if layer.skip > 1}
    result: list[range] = []
    for i, layer in enumerate(layers):
        same = i > 0 and (layer, size[i], marks[i]) == (layers[i - 1], size[i - 1], marks[i - 1])
        if same and layer.skip <= 1 and i - 1 not in reached:
            result[-1] = range(result[-1].start, i + 1)
        else:
            result.append(range(i, i + 1))
    parts: list[range] = []
    for run in result:
        parts += [run] if shortest and len(run) >= shortest else [range(i, i + 1) for i in run]
    return parts


def apply_layers(
    layer: Layer, layers: Sequence[ConvLayer], items: Sequence[Tree], x: Array, cfg: ExecutionConfig
) -> tuple[Array, list[Tree]]:
    """Apply all layers to x.

    Args:
      layer: the function of one layer, used inside and outside a loop.
      layers: the list.
      items: the third argument of `layer`, for each layer.
      x: [B, T, C], input of the first layer.
      cfg: whether to use loops and recomputation.

    Returns:
      The output of the last layer, and the further results of each layer.
    """
    outputs: list[Any] = [x]
    made: list[Tree] = []
    sharded = any_sharded(items)
    for run in runs(layers, [jax.tree.structure(item) for item in items], cfg.shortest_loop):
        scanned = len(run) > 1
        apply: BoundLayer = partial(_with_gathered_kernels, partial(layer, layers[run.start], cfg.form(scanned)))
        apply = cfg.with_remat(apply, scanned=scanned, sharded=sharded, named=True)
        if scanned:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(items[i] for i in run))
            x, ys = jax.lax.scan(partial(_body, apply), outputs[-1], stacked)
            made += [jax.tree.map(itemgetter(i), ys) for i in range(len(run))]
        else:
            x, y = apply(items[run.start], outputs)
            x = jax.lax.optimization_barrier(x)  # so that later layers read it instead of recomputing it
            made.append(y)
        outputs += [None] * (len(run) - 1) + [x]
    return outputs[-1], made


def _with_gathered_kernels(apply: BoundLayer, item: Tree, outputs: Sequence[Array]) -> tuple[Array, Tree]:
    return apply(gather(item), outputs)


def _body(apply: BoundLayer, x: Array, item: Tree) -> tuple[Array, Tree]:
    return apply(item, [x])
