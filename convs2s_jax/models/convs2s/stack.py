"""How a stack of layers is executed: one after another, or equal ones as the body of a loop. Results are the same."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.models.convs2s.layers import ConvLayer, sizes
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.types import Array, Tree

Layer = Callable[[ConvLayer, DenseForm, Tree, Sequence[Array]], tuple[Array, Tree]]
"""One layer: (its entry in the list, the form of its convolution, its parameters and its own inputs, the outputs
of the layers before) -> its output and its own other results."""
PlacedLayer = Callable[[Tree, Sequence[Array]], tuple[Array, Tree]]
"""A `Layer` whose place and form are given already."""


def runs(layers: Sequence[ConvLayer], marks: Sequence[Any], shortest: int) -> list[range]:
    """Cut a layer list into runs of equal neighbours, each of which can be one loop, and single layers.

    In a run of several, all have the same channels, width and inputs, take their residual from the layer before or have
    none, and no later layer reaches back to an output inside the run: only the last one leaves the loop.

    Args:
      layers: the list.
      marks: for each layer what else has to be equal in a run, such as whether it attends.
      shortest: layers of the shortest run that is not cut into single ones; 0 cuts all.
    """
    size = sizes(layers)
    reached = {i - layer.skip for i, layer in enumerate(layers) if layer.skip > 1}
    result: list[range] = []
    for i, layer in enumerate(layers):
        same = i > 0 and (layer, size[i], marks[i]) == (layers[i - 1], size[i - 1], marks[i - 1])
        if same and layer.skip <= 1 and i - 1 not in reached:
            result[-1] = range(result[-1].start, i + 1)
        else:
            result.append(range(i, i + 1))
    return [part for run in result for part in (_single(run) if not shortest or len(run) < shortest else [run])]


def _single(run: range) -> list[range]:
    return [range(i, i + 1) for i in run]


def through(
    layer: Layer, layers: Sequence[ConvLayer], items: Sequence[Tree], x: Array, cfg: ExecutionConfig
) -> tuple[Array, list[Tree]]:
    """Send x through all layers.

    Args:
      layer: the function of a layer, the same inside and outside a loop.
      layers: the list.
      items: for each layer what `layer` takes as its third argument.
      x: [B, T, C], what enters the first layer.
      cfg: how.

    Returns:
      The output of the last layer, and for each layer what else came of it.
    """
    outputs: list[Any] = [x]
    made: list[Tree] = []
    for run in runs(layers, [jax.tree.structure(item) for item in items], cfg.scan_layers):
        scanned = len(run) > 1
        apply: PlacedLayer = partial(layer, layers[run.start], cfg.form(scanned))
        if cfg.remat:
            apply = jax.checkpoint(apply, prevent_cse=not scanned)
        if scanned:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(items[i] for i in run))
            x, ys = jax.lax.scan(partial(_body, apply), outputs[-1], stacked)
            made += [jax.tree.map(itemgetter(i), ys) for i in range(len(run))]
        else:
            x, y = apply(items[run.start], outputs)
            made.append(y)
        outputs += [None] * (len(run) - 1) + [x]
    return outputs[-1], made


def _body(apply: PlacedLayer, x: Array, item: Tree) -> tuple[Array, Tree]:
    return apply(item, [x])
