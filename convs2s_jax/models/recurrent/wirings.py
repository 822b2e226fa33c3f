"""Three ways to wire attention into a recurrent decoder: which state attends, and where its context goes.

e_t is the embedded word before the one that is predicted, s^l_t the state of layer l of L (its output h), y^l_t what
leaves the layer (s^l_t, plus its input where it has a residual), c_t = attention(query) the context, o_t the features.

previous (Bahdanau et al. 2015; with several layers Wu et al. 2016, who have attention at the bottom so that the layers
above wait for nothing):

    c_t = attention(s^1_{t-1});   s^1_t = cell([e_t; c_t], s^1_{t-1});   s^l_t = cell([y^{l-1}_t; c_t], s^l_{t-1})
    o_t = tanh(W_o [y^L_t; c_t; e_t] + b_o)

current (Luong et al. 2015, section 3.1 and equation 5): the states need no attention, so all positions attend at once.

    s^1_t = cell(e_t, s^1_{t-1});   s^l_t = cell(y^{l-1}_t, s^l_{t-1});   c_t = attention(y^L_t)
    o_t = tanh(W_o [y^L_t; c_t] + b_o)

feeding (their section 3.3): the same, but  s^1_t = cell([e_t; o_{t-1}], s^1_{t-1}),  o_0 = 0.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.models.recurrent.records import RecurrentDecoderCache, RecurrentDecoderConfig, RecurrentDecoderParams
from convs2s_jax.nn import recurrent
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.recurrent import CELLS, Cell, State
from convs2s_jax.nn.recurrent_attention import ATTENTIONS, Source, attend
from convs2s_jax.nn.types import Array, Key


class Target(NamedTuple):
    """What a decoder reads: words e [N, T, E], their mask [N, T], dropout and its keys above layer 1, and `remat`."""

    e: Array
    mask: Array
    rate: float
    keys: Sequence[Key | None]
    remat: bool


Read = Callable[
    [RecurrentDecoderParams, RecurrentDecoderConfig, Source, RecurrentDecoderCache, Target],
    tuple[Array, Array, RecurrentDecoderCache],
]
"""Features [N, T, O], attention [N, T, S], the next cache."""


class Wiring(NamedTuple):
    """A way to wire attention in.

    read: the decoder between embedding and softmax; first, above, out: what enters the first layer beside the word, the
    layers above beside the outputs below, and the map to O beside the top output, each as multiples of (E, O); fed:
    whether features enter the next step.
    """

    read: Read
    first: tuple[int, int]
    above: tuple[int, int]
    out: tuple[int, int]
    fed: bool


def previous(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    source: Source,
    cache: RecurrentDecoderCache,
    target: Target,
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Only the first layer and its attention share a loop over time; see the head of the file."""
    kind, scores, cell = CELLS[cfg.cell], ATTENTIONS[cfg.attention], params.cells[0]
    words, contexts = _cut(cell.input, target.e.shape[-1])

    def body(state: State, item: tuple[Array, Array]) -> tuple[State, tuple[Array, Array, Array]]:
        x, mask = item
        c, a = attend(scores, params.attention, source, state[0][:, None])
        state = recurrent.step(kind, cell.state, state, x + linear(contexts, c[:, 0]), mask)
        return state, (recurrent.output(state, mask, x.dtype), c[:, 0], a[:, 0])

    state, made = _loop(body, cache.states[0], (recurrent.products(words, target.e), target.mask.T), target.remat)
    y, c, a = (jnp.swapaxes(x, 0, 1) for x in made)
    y, states = _stack(params.cells[1:], cfg, cache.states[1:], y, c, target)
    features = jnp.tanh(linear(params.map_out, jnp.concatenate([y, c, target.e], axis=-1)))
    return features, a, RecurrentDecoderCache(states=(state, *states), fed=None)


def current(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    source: Source,
    cache: RecurrentDecoderCache,
    target: Target,
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Layer after layer over all positions, then one attention for all; see the head of the file."""
    y, states = _stack(params.cells, cfg, cache.states, target.e, None, target)
    c, a = attend(ATTENTIONS[cfg.attention], params.attention, source, y)
    features = jnp.tanh(linear(params.map_out, jnp.concatenate([y, c], axis=-1)))
    return features, a, RecurrentDecoderCache(states=states, fed=None)


def feeding(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    source: Source,
    cache: RecurrentDecoderCache,
    target: Target,
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """All layers in one loop over time, since the first waits for the last; see the head of the file."""
    kind, scores = CELLS[cfg.cell], ATTENTIONS[cfg.attention]
    words, features_before = _cut(params.cells[0].input, target.e.shape[-1])
    ones = jnp.ones((*target.mask.shape, cfg.units), target.e.dtype)
    kept = tuple(None if k is None else jnp.swapaxes(dropout(ones, target.rate, k), 0, 1) for k in target.keys)

    def body(
        carry: tuple[tuple[State, ...], Array], item: tuple[Array, Array, tuple[Array | None, ...]]
    ) -> tuple[tuple[tuple[State, ...], Array], tuple[Array, Array]]:
        (before, fed), (word, mask, kept) = carry, item
        x, states = word + linear(features_before, fed), []
        y = jnp.zeros((), word.dtype)
        for i, (cell, state) in enumerate(zip(params.cells, before, strict=True)):
            if i:
                k = kept[i - 1]
                x = linear(cell.input, y if k is None else y * k)
            states.append(recurrent.step(kind, cell.state, state, x, mask))
            h = recurrent.output(states[-1], mask, word.dtype)
            y = y + h if cfg.adds_input(i) else h
        c, a = attend(scores, params.attention, source, y[:, None])
        o = jnp.tanh(linear(params.map_out, jnp.concatenate([y, c[:, 0]], axis=-1)))
        return (tuple(states), jnp.where(mask[:, None], o, fed)), (o, a[:, 0])

    assert cache.fed is not None
    items = (recurrent.products(words, target.e), target.mask.T, kept)
    (states, fed), made = _loop(body, (cache.states, cache.fed), items, target.remat)
    features, a = (jnp.swapaxes(x, 0, 1) for x in made)
    return features, a, RecurrentDecoderCache(states=states, fed=fed)


WIRINGS: dict[str, Wiring] = {
    "previous": Wiring(read=previous, first=(1, 0), above=(1, 0), out=(2, 0), fed=False),
    "current": Wiring(read=current, first=(0, 0), above=(0, 0), out=(1, 0), fed=False),
    "feeding": Wiring(read=feeding, first=(0, 1), above=(0, 0), out=(1, 0), fed=True),
}


def _cut(params: Affine, dim: int) -> tuple[Affine, Affine]:
    """The maps of the first `dim` inputs, with the bias, and of the others, without."""
    return Affine(w=params.w[:dim], b=params.b), Affine(w=params.w[dim:], b=jnp.zeros_like(params.b))


def _loop(body: Callable[..., Any], carry: Any, items: Any, remat: bool) -> tuple[Any, Any]:
    return jax.lax.scan(jax.checkpoint(body, prevent_cse=False) if remat else body, carry, items)


def _stack(
    cells: Sequence[Cell],
    cfg: RecurrentDecoderConfig,
    states: Sequence[State],
    x: Array,
    beside: Array | None,
    target: Target,
) -> tuple[Array, tuple[State, ...]]:
    """The top layers, as many as there are cells, one after another over all positions.

    Args:
      cells: of the layers.
      cfg: of the decoder.
      states: before the first position.
      x: [N, T, C], what the layer below gives.
      beside: [N, T, E], what else each of them reads.
      target: mask and dropout.
    """
    run: Callable[..., tuple[Array, State]] = partial(recurrent.run, CELLS[cfg.cell])
    if target.remat:
        run = jax.checkpoint(run)
    after = []
    for i, (cell, state) in enumerate(zip(cells, states, strict=True), cfg.layers - len(cells)):
        inputs = dropout(x, target.rate, target.keys[i - 1]) if i else x
        if beside is not None:
            inputs = jnp.concatenate([inputs, beside], axis=-1)
        y, state = run(cell, state, inputs, target.mask)
        x = x + y if cfg.adds_input(i) else y
        after.append(state)
    return x, tuple(after)
