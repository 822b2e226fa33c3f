"""Three ways to wire attention into a recurrent decoder, by which state attends and where the context goes.

e_t is the embedding of the word before the predicted one, s^l_t the state of layer l of L (its output h), y^l_t the
output of the layer (s^l_t, plus its input if it has a residual), c_t = attention(query) the context, o_t the features.

previous (Bahdanau et al. 2015; with several layers Wu et al. 2016, who attend from the bottom layer so that the layers
above can run in parallel):

    c_t = attention(s^1_{t-1});   s^1_t = cell([e_t; c_t], s^1_{t-1});   s^l_t = cell([y^{l-1}_t; c_t], s^l_{t-1})
    o_t = tanh(W_o [y^L_t; c_t; e_t] + b_o)

current (Luong et al. 2015, section 3.1 and equation 5). States do not depend on attention, so all positions attend at
once:

    s^1_t = cell(e_t, s^1_{t-1});   s^l_t = cell(y^{l-1}_t, s^l_{t-1});   c_t = attention(y^L_t)
    o_t = tanh(W_o [y^L_t; c_t] + b_o)

feeding (their section 3.3): the same, but  s^1_t = cell([e_t; o_{t-1}], s^1_{t-1}),  o_0 = 0.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.nn import recurrent, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.gradient import scan
from convs2s_jax.nn.recurrent import Cell, CellKind, CellState
from convs2s_jax.nn.recurrent_attention import AttentionParams, MappedMemory, Scoring, attend
from convs2s_jax.nn.types import Array, Key


@struct.dataclass
class RecurrentDecoderCache:
    """The decoder state after the target tokens read so far.

    Attributes:
      states: states of each layer after the last real token.
      fed: with input feeding the features after that token, [N, O]; otherwise [N, 0].
    """

    states: tuple[CellState, ...]
    fed: Array


class RecurrentLayers(NamedTuple):
    """The layers between the embedding and the softmax layer: their kinds and parameters.

    Attributes:
      kind: the kind of cell.
      scoring: the kind of attention.
      residual: the first layer, counted from 1, with a residual connection; None for no residual connections.
      cells: kernels of each layer.
      attention: parameters of the attention.
      map_out: the map to the O features.
    """

    kind: CellKind
    scoring: Scoring[AttentionParams]
    residual: int | None
    cells: Sequence[Cell]
    attention: AttentionParams
    map_out: Affine

    def adds_input(self, index: int) -> bool:
        """Whether the layer with this index, counted from 0, has a residual connection."""
        return self.residual is not None and index + 1 >= self.residual


class TargetWords(NamedTuple):
    """The embedded target and its dropout settings.

    Attributes:
      e: [N, T, E], embedded words.
      mask: [N, T], True at real words.
      rate: dropout rate between layers.
      keys: random keys for the dropout below each layer except the first, or None.
      execution: which activations of steps or layers are saved for the backward pass.
    """

    e: Array
    mask: Array
    rate: float
    keys: Sequence[Key | None]
    execution: ExecutionConfig


Read = Callable[
    [RecurrentLayers, MappedMemory, RecurrentDecoderCache, TargetWords], tuple[Array, Array, RecurrentDecoderCache]
]
"""Features [N, T, O], attention [N, T, S] and the next cache."""


class Wiring(NamedTuple):
    """A way to wire attention into the decoder. Channel counts are pairs of multiples of (E, O).

    Attributes:
      read: the function that runs the layers between embedding and softmax layer.
      first: extra input channels of the first layer, besides the embedded word.
      above: extra input channels of each other layer, besides the output of the layer below.
      out: extra input channels of the map to O, besides the output of the top layer.
      fed: whether the features are an input of the next step (input feeding).
    """

    read: Read
    first: tuple[int, int]
    above: tuple[int, int]
    out: tuple[int, int]
    fed: bool


def previous(
    layers: RecurrentLayers, memory: MappedMemory, cache: RecurrentDecoderCache, target: TargetWords
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Run one loop over time for the first layer with attention, then the layers above; see the module docstring."""
    cell = layers.cells[0]
    words, contexts = _split_input_channels(cell.input, target.e.shape[-1])

    def body(
        params: tuple[Affine, Affine, AttentionParams, MappedMemory], state: CellState, item: tuple[Array, Array]
    ) -> tuple[CellState, tuple[Array, Array, Array]]:
        (recurrence, contexts, attention, memory), (x, mask) = params, item
        c, a = attend(layers.scoring, attention, memory, state[0][:, None])
        state = recurrent.step(layers.kind, recurrence, state, x + linear(contexts, c[:, 0]), mask)
        return state, (recurrent.output(state, mask, x.dtype), c[:, 0], a[:, 0])

    params = (cell.state, contexts, layers.attention, memory)
    items = (recurrent.products(words, target.e), target.mask.T)
    state, made = scan(target.execution.with_remat(body, scanned=True), params, cache.states[0], items)
    y, c, a = (jnp.swapaxes(x, 0, 1) for x in made)
    y, states = _stack(layers, 1, cache.states[1:], y, c, target)
    features = jnp.tanh(linear(layers.map_out, jnp.concatenate([y, c, target.e], axis=-1)))
    return features, a, RecurrentDecoderCache(states=(state, *states), fed=cache.fed)


def current(
    layers: RecurrentLayers, memory: MappedMemory, cache: RecurrentDecoderCache, target: TargetWords
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Run each layer over all positions, then attention for all positions at once; see the module docstring."""
    y, states = _stack(layers, 0, cache.states, target.e, None, target)
    c, a = attend(layers.scoring, layers.attention, memory, y)
    features = jnp.tanh(linear(layers.map_out, jnp.concatenate([y, c], axis=-1)))
    return features, a, RecurrentDecoderCache(states=states, fed=cache.fed)


def feeding(
    layers: RecurrentLayers, memory: MappedMemory, cache: RecurrentDecoderCache, target: TargetWords
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Run one loop over time for all layers, since the first depends on the last; see the module docstring."""
    words, features_before = _split_input_channels(layers.cells[0].input, target.e.shape[-1])
    ones = jnp.ones((*target.mask.shape, layers.cells[0].state.w.shape[0]), target.e.dtype)
    kept = tuple(None if k is None else jnp.swapaxes(dropout(ones, target.rate, k), 0, 1) for k in target.keys)

    def body(
        params: tuple[Affine, Sequence[Cell], AttentionParams, Affine, MappedMemory],
        carry: tuple[tuple[CellState, ...], Array],
        item: tuple[Array, Array, tuple[Array | None, ...]],
    ) -> tuple[tuple[tuple[CellState, ...], Array], tuple[Array, Array]]:
        features_before, cells, attention, map_out, memory = params
        (before, fed), (word, mask, kept) = carry, item
        x, states = word + linear(features_before, fed), []
        y = jnp.zeros((), word.dtype)
        for i, (cell, state) in enumerate(zip(cells, before, strict=True)):
            if i:
                k = kept[i - 1]
                x = linear(cell.input, y if k is None else y * k)
            states.append(recurrent.step(layers.kind, cell.state, state, x, mask))
            h = recurrent.output(states[-1], mask, word.dtype)
            y = y + h if layers.adds_input(i) else h
        c, a = attend(layers.scoring, attention, memory, y[:, None])
        o = jnp.tanh(linear(map_out, jnp.concatenate([y, c[:, 0]], axis=-1)))
        return (tuple(states), jnp.where(mask[:, None], o, fed)), (o, a[:, 0])

    items = (recurrent.products(words, target.e), target.mask.T, kept)
    params = (features_before, layers.cells, layers.attention, layers.map_out, memory)
    (states, fed), made = scan(
        target.execution.with_remat(body, scanned=True), params, (cache.states, cache.fed), items
    )
    features, a = (jnp.swapaxes(x, 0, 1) for x in made)
    return features, a, RecurrentDecoderCache(states=states, fed=fed)


WIRINGS: dict[str, Wiring] = {
    "previous": Wiring(read=previous, first=(1, 0), above=(1, 0), out=(2, 0), fed=False),
    "current": Wiring(read=current, first=(0, 0), above=(0, 0), out=(1, 0), fed=False),
    "feeding": Wiring(read=feeding, first=(0, 1), above=(0, 0), out=(1, 0), fed=True),
}


def _split_input_channels(params: Affine, dim: int) -> tuple[Affine, Affine]:
    """Split an affine map by input channels: the first `dim` with the bias, the others without."""
    return Affine(w=params.w[:dim], b=params.b), Affine(w=params.w[dim:], b=jnp.zeros_like(params.b))


def _stack(
    layers: RecurrentLayers,
    first: int,
    states: Sequence[CellState],
    x: Array,
    extra_input: Array | None,
    target: TargetWords,
) -> tuple[Array, tuple[CellState, ...]]:
    """Run the layers from index `first` up, each over all positions.

    Args:
      layers: all layers of the decoder.
      first: index of the lowest layer to run.
      states: states of the layers to run, before the first position.
      x: [N, T, C], the output of the layer below.
      extra_input: [N, T, E], an additional input of each layer, or None.
      target: mask and dropout settings.
    """
    apply = target.execution.with_remat(partial(recurrent.run, layers.kind))
    after = []
    for i, (cell, state) in enumerate(zip(layers.cells[first:], states, strict=True), first):
        inputs = dropout(x, target.rate, target.keys[i - 1]) if i else x
        if extra_input is not None:
            inputs = jnp.concatenate([inputs, extra_input], axis=-1)
        y, new = apply(cell, state, inputs, target.mask)
        x = x + y if layers.adds_input(i) else y
        after.append(new)
    return x, tuple(after)
