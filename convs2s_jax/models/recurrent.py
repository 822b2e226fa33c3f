"""Recurrent encoders and decoders: GRU or LSTM layers with attention (Bahdanau et al. 2015, Luong et al. 2015, GNMT).

`nn.recurrent` has the cells and the scores of attention. There are three ways to wire attention into a decoder, by
which state attends and where the context goes.

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

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import ITEMS, check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import kinds
from convs2s_jax.models.kinds import Memory, Options, memory_of
from convs2s_jax.nn import affine, embedding, output, recurrent, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import context
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.gradient import broadcast
from convs2s_jax.nn.loops import scan
from convs2s_jax.nn.recurrent import (
    ATTENTIONS,
    CELLS,
    AttentionName,
    AttentionParams,
    Cell,
    CellName,
    CellState,
    Scoring,
)
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


@record
class RecurrentConfig:
    """Config fields that encoder and decoder share.

    Attributes:
      kind: recurrent.
      cell: GRU or LSTM.
      layers: number of layers.
      units: number of units U of one direction.
      residual: the first layer, counted from 1, with a residual connection; all layers above it have one too (3 in Wu
        et al. 2016, equation 6). None for no residual connections.
      max_length: maximum length of a sequence in tokens, including its end symbol.
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: CellName = "gru"
    layers: int = 1
    units: int = 256
    residual: int | None = None
    max_length: int = 1022

    def __post_init__(self) -> None:
        layers, residual = self.layers, self.residual
        check(layers >= 1, f"layers is {layers}: a recurrent stack has at least one; use 1 or more")
        check(layers <= ITEMS, f"layers is {layers}: use at most {ITEMS}")
        check(self.units >= 1, f"units is {self.units}: use 1 or more")
        check(
            residual is None or 2 <= residual <= layers,
            f"residual is {residual}: the first of {layers} layers reads words, and layer 2 is the first that can add "
            "its input; use 2 up to the number of layers, or None",
        )
        rule = f"max_length is {self.max_length}: a word and its end symbol need two; use 2 or more"
        check(self.max_length >= 2, rule)

    def adds_input(self, index: int) -> bool:
        """Whether the layer with this index, counted from 0, has a residual connection."""
        return self.residual is not None and index + 1 >= self.residual


@record
class RecurrentEncoderConfig(RecurrentConfig, kinds.EncoderConfig):
    """Recurrent encoder.

    Attributes:
      bidirectional: number of bidirectional layers, counted from the bottom (all in Bahdanau et al. 2015, 1 in Wu et
        al. 2016).
    """

    bidirectional: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        both, layers = self.bidirectional, self.layers
        check(
            0 <= both <= layers,
            f"bidirectional is {both}: expected a number of bidirectional layers between 0 and {layers}",
        )
        check(
            both in (0, layers) or not self.adds_input(both),
            f"residual is {self.residual}: a layer adds its input to its output, and in layer {both + 1}, the first "
            f"with one direction, their sizes differ; use a later layer or None, or set bidirectional to 0 or {layers}",
        )

    def outputs(self, index: int) -> int:
        """Return the output channels of the layer with this index, counted from 0."""
        return 2 * self.units if index < self.bidirectional else self.units


@struct.dataclass
class EncoderLayer:
    """One layer: the cell that runs forward in time, and the one that runs backward, or None."""

    forward: Cell
    backward: Cell | None


@struct.dataclass
class RecurrentEncoderParams:
    """Parameters of the recurrent encoder. The map to E is for the last layer's outputs and final states."""

    embedding: Embedding
    layers: tuple[EncoderLayer, ...]
    map_out: Affine


def init_encoder(
    key: Key, cfg: RecurrentEncoderConfig, vocabulary: int, dim: int, rate: float
) -> RecurrentEncoderParams:
    """Initialise parameters (`nn.recurrent.init`) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, 2 * cfg.layers + 2)
    layers = []
    for i in range(cfg.layers):
        inputs = dim if i == 0 else cfg.outputs(i - 1)
        forward, backward = (
            recurrent.init(k, CELLS[cfg.cell], inputs, cfg.units, keep=1.0 - rate) for k in keys[2 + 2 * i : 4 + 2 * i]
        )
        layers.append(EncoderLayer(forward=forward, backward=backward if i < cfg.bidirectional else None))
    return RecurrentEncoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        layers=tuple(layers),
        map_out=affine.init(keys[1], cfg.outputs(cfg.layers - 1), dim, keep=1.0 - rate),
    )


def encode(params: RecurrentEncoderParams, cfg: RecurrentEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens: keys and values are W y_s + b for the last layer's outputs y_s = [forward; backward].

    The summary is the same map of the last layer's final states: forward at the last word, backward at the first.
    (Bahdanau et al. 2015 have no map. Their decoder reads 2 U channels, and their summary is the backward half.)

    Dropout is applied to the embeddings, between layers and to the last outputs.
    """
    mask, rate = src != PAD, options.rate
    keys = split_key(options.key, cfg.layers + 1)
    apply = options.execution.with_remat(partial(_layer, cfg))
    x = embed(params.embedding, src).astype(params.map_out.w.dtype)
    for i, (cells, k) in enumerate(zip(params.layers, keys, strict=False)):
        y, last = apply(cells, dropout(x, rate, k), mask)
        x = x + y if cfg.adds_input(i) else y
    memory = memory_of(linear(params.map_out, dropout(x, rate, keys[-1])), mask, options)
    return dataclasses.replace(memory, summary=linear(params.map_out, last))


def _layer(cfg: RecurrentEncoderConfig, layer: EncoderLayer, x: Array, mask: Array) -> tuple[Array, Array]:
    """Run one layer on x [B, S, C]; return outputs [B, S, D] and final states [B, D], with D = 2 U if bidirectional."""
    kind, found = CELLS[cfg.cell], []
    for cell, reverse in ((layer.forward, False), (layer.backward, True)):
        if cell is not None:
            start = recurrent.zeros(kind, len(x), cfg.units, cell.state.w.dtype)
            y, (h, *_) = recurrent.run(kind, cell, start, x, mask, reverse=reverse)
            found.append((y, h.astype(y.dtype)))
    y, h = (jnp.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    return y, h


RecurrentEncoderConfig.functions = kinds.EncoderFunctions(init_encoder, encode)


@record
class RecurrentDecoderConfig(RecurrentConfig, kinds.DecoderConfig):
    """Recurrent decoder.

    Attributes:
      attention: how positions are scored: "additive" (Bahdanau et al. 2015), "dot" or "general" (Luong et al. 2015), or
        "none" to read only the encoder's summary.
      wiring: which state attends and where its context goes: the first layer's "previous" state (Bahdanau et al.
        2015), the top layer's "current" state (Luong et al. 2015), or that with input "feeding" (their section 3.3).
      out_dim: number of channels O of the layer before the softmax.
      tied_output: whether the softmax uses the embedding table (O = E).
    """

    attention: AttentionName = "additive"
    wiring: Literal["previous", "current", "feeding"] = "previous"
    out_dim: int = 256
    tied_output: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")

    def check_dim(self, dim: int) -> None:
        """Reject a number of units that cannot be compared with E = dim."""
        check(
            self.attention != "dot" or self.units == dim,
            f"decoder.units is {self.units} with attention 'dot': a memory of embedding_dim {dim} is compared with "
            "states as they are; make the two equal, or use attention 'general'",
        )

    def features_dim(self, _dim: int, /) -> int:
        """Return the number of output features, O = `out_dim`."""
        return self.out_dim

    @property
    def attention_names(self) -> tuple[str, ...]:
        """One attention for all layers, or none."""
        return () if self.attention == "none" else ("attention",)


@struct.dataclass
class RecurrentDecoderParams:
    """Parameters of the recurrent decoder.

    Attributes:
      embedding: embedding of target tokens.
      first: maps from the summary to the initial state of each layer, [E -> U] for each part, concatenated.
      cells: kernels of each layer.
      attention: parameters of the attention.
      map_out: the linear map to the O features.
      output: the softmax layer [O -> V], or only its bias [V] if the kernel is the embedding table.
    """

    embedding: Embedding
    first: tuple[Affine, ...]
    cells: tuple[Cell, ...]
    attention: AttentionParams
    map_out: Affine
    output: Affine | Array


@struct.dataclass
class RecurrentDecoderCache:
    """The states of each layer after the last real token, and with input feeding the features [N, O], else [N, 0]."""

    states: tuple[CellState, ...]
    fed: Array


def init_decoder(
    key: Key, cfg: RecurrentDecoderConfig, vocabulary: int, dim: int, rate: float
) -> RecurrentDecoderParams:
    """Initialise parameters (`nn.recurrent.init`) for V = vocabulary, E = dim and dropout `rate`."""
    kind, keep, E, U, O = CELLS[cfg.cell], 1.0 - rate, dim, cfg.units, cfg.out_dim
    keys = jax.random.split(key, 2 * cfg.layers + 4)
    first, above, out = {  # input channels of the first layer, of the others and of the map to the features
        "previous": (2 * E, U + E, U + 2 * E),
        "current": (E, U, U + E),
        "feeding": (E + O, U, U + E),
    }[cfg.wiring]
    inputs = [first, *[above] * (cfg.layers - 1)]
    cell_keys = keys[4 + cfg.layers :]
    return RecurrentDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        first=tuple(affine.init(k, E, kind.parts * U) for k in keys[4 : 4 + cfg.layers]),
        cells=tuple(recurrent.init(k, kind, C, U, keep=keep) for k, C in zip(cell_keys, inputs, strict=True)),
        attention=ATTENTIONS[cfg.attention].init(keys[1], U, E),
        map_out=affine.init(keys[2], out, O),
        output=output.init(keys[3], O, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def prepare(params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: Memory) -> Memory:
    """Map the keys for the attention, once for all steps and hypotheses."""
    return dataclasses.replace(
        memory, keys=ATTENTIONS[cfg.attention].keys(params.attention, memory.keys), prepared=True
    )


def init_cache(
    params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: Memory, rows: int
) -> RecurrentDecoderCache:
    """Create the cache before the first token: s_0 = tanh(W summary + b) for each part of each layer's state.

    (See Bahdanau et al. 2015, appendix A.2.2, where the summary is the encoder's backward state at the first word. An
    LSTM state has two parts, h and c.)
    """
    parts, dtype = CELLS[cfg.cell].parts, params.map_out.w.dtype

    def state(first: Affine) -> CellState:
        h = jnp.tanh(linear(first, memory.summary)).astype(accumulation_dtype(dtype))
        return tuple(jnp.split(jnp.repeat(h, rows // len(h), axis=0), parts, axis=-1))

    fed = jnp.zeros((rows, cfg.out_dim if cfg.wiring == "feeding" else 0), dtype)
    return RecurrentDecoderCache(states=tuple(map(state, params.first)), fed=fed)


class Target(NamedTuple):
    """The target of one call, with the parameters, config and prepared memory of the decoder that reads it.

    Attributes:
      e: [N, T, E], embedded words.
      mask: [N, T], True at real words.
      keys: random keys for the dropout below each layer except the first, or None.
      options: dropout rate between layers; which activations of steps or layers are saved for the backward pass.
    """

    params: RecurrentDecoderParams
    cfg: RecurrentDecoderConfig
    memory: Memory
    e: Array
    mask: Array
    keys: Sequence[Key | None]
    options: Options


Reading = tuple[Array, Array, RecurrentDecoderCache]
"""Features [N, T, O], attention [N, T, S] and the next cache."""


def previous(target: Target, cache: RecurrentDecoderCache) -> Reading:
    """Run one loop over time for the first layer with attention, then the layers above; see the module docstring."""
    params, cfg, memory, e, mask, _, options = target
    cell, kind = params.cells[0], CELLS[cfg.cell]
    words, contexts = _split_input_channels(cell.input, e.shape[-1])

    def body(fixed: Any, state: CellState, item: tuple[Array, Array]) -> tuple[CellState, tuple[Array, Array, Array]]:
        (recurrence, contexts, attention, memory), (x, mask) = fixed, item
        c, a = attend(ATTENTIONS[cfg.attention], attention, memory, state[0][:, None])
        state = recurrent.step(kind, recurrence, state, x + linear(contexts, c[:, 0]), mask)
        return state, (recurrent.output(state, mask, x.dtype), c[:, 0], a[:, 0])

    fixed = (cell.state, contexts, params.attention, memory)
    items = (recurrent.products(words, e), mask.T)
    state, made = scan(options.execution.with_remat(body, scanned=True), fixed, cache.states[0], items)
    y, c, a = (jnp.swapaxes(x, 0, 1) for x in made)
    y, states = _stack(target, cache.states[1:], y, c, first=1)
    features = jnp.tanh(linear(params.map_out, jnp.concatenate([y, c, e], axis=-1)))
    return features, a, RecurrentDecoderCache(states=(state, *states), fed=cache.fed)


def current(target: Target, cache: RecurrentDecoderCache) -> Reading:
    """Run each layer over all positions, then attention for all positions at once; see the module docstring."""
    y, states = _stack(target, cache.states, target.e)
    c, a = attend(ATTENTIONS[target.cfg.attention], target.params.attention, target.memory, y)
    features = jnp.tanh(linear(target.params.map_out, jnp.concatenate([y, c], axis=-1)))
    return features, a, RecurrentDecoderCache(states=states, fed=cache.fed)


def feeding(target: Target, cache: RecurrentDecoderCache) -> Reading:
    """Run one loop over time for all layers, since the first depends on the last; see the module docstring."""
    params, cfg, memory, e, mask, keys, options = target
    words, features_before = _split_input_channels(params.cells[0].input, e.shape[-1])
    ones = jnp.ones((*mask.shape, cfg.units), e.dtype)
    kept = tuple(None if k is None else jnp.swapaxes(dropout(ones, options.rate, k), 0, 1) for k in keys)

    def body(fixed: Any, carry: Any, item: Any) -> tuple[Any, tuple[Array, Array]]:
        features_before, cells, attention, map_out, memory = fixed
        (before, fed), (word, mask, kept) = carry, item
        x, states = word + linear(features_before, fed), []
        y = jnp.zeros((), word.dtype)
        for i, (cell, state) in enumerate(zip(cells, before, strict=True)):
            if i:
                x = linear(cell.input, y if kept[i - 1] is None else y * kept[i - 1])
            states.append(recurrent.step(CELLS[cfg.cell], cell.state, state, x, mask))
            h = recurrent.output(states[-1], mask, word.dtype)
            y = y + h if cfg.adds_input(i) else h
        c, a = attend(ATTENTIONS[cfg.attention], attention, memory, y[:, None])
        o = jnp.tanh(linear(map_out, jnp.concatenate([y, c[:, 0]], axis=-1)))
        return (tuple(states), jnp.where(mask[:, None], o, fed)), (o, a[:, 0])

    items = (recurrent.products(words, e), mask.T, kept)
    fixed = (features_before, params.cells, params.attention, params.map_out, memory)
    body = options.execution.with_remat(body, scanned=True)
    (states, fed), made = scan(body, fixed, (cache.states, cache.fed), items)
    features, a = (jnp.swapaxes(x, 0, 1) for x in made)
    return features, a, RecurrentDecoderCache(states=states, fed=fed)


WIRINGS: dict[str, Callable[[Target, RecurrentDecoderCache], Reading]] = {
    "previous": previous,
    "current": current,
    "feeding": feeding,
}
"""The functions that run the layers between embedding and softmax layer."""


def attend(kind: Scoring, params: AttentionParams, memory: Memory, queries: Array) -> tuple[Array, Array]:
    """Return the contexts c [N, T, E] and weights a [N, T, S], float32 or better, of queries [N, T, U], N = B * W.

    Args:
      kind: an entry of `ATTENTIONS`.
      params: from the `init` of the kind.
      memory: prepared memory of B sentences.
      queries: the hypotheses of a sentence are adjacent.
    """
    (N, T, _), (B, S, E) = queries.shape, memory.values.shape
    if kind.score is None:
        c = broadcast(memory.summary[:, None], (B, N // B * T, E))
        a = jnp.zeros((B, N // B * T, S), accumulation_dtype(memory.values.dtype))
    else:
        scores = kind.score(params, queries.reshape(B, -1, queries.shape[-1]), memory.keys)
        c, a = context(scores, memory.values, memory.mask)
    return c.reshape(N, T, E), a.reshape(N, T, S)


def _split_input_channels(params: Affine, dim: int) -> tuple[Affine, Affine]:
    """Split an affine map by input channels: the first `dim` with the bias, the others without."""
    return Affine(w=params.w[:dim], b=params.b), Affine(w=params.w[dim:], b=jnp.zeros_like(params.b))


def _stack(
    target: Target, states: Sequence[CellState], x: Array, extra_input: Array | None = None, first: int = 0
) -> tuple[Array, tuple[CellState, ...]]:
    """Run the layers from index `first` up, each over all positions of x [N, T, C], the output of the layer below.

    Each of them reads `extra_input` [N, T, E] too. The states are those before the first position, and after the last.
    """
    cfg, options = target.cfg, target.options
    apply = options.execution.with_remat(partial(recurrent.run, CELLS[cfg.cell]))
    after = []
    for i, (cell, state) in enumerate(zip(target.params.cells[first:], states, strict=True), first):
        inputs = dropout(x, options.rate, target.keys[i - 1]) if i else x
        if extra_input is not None:
            inputs = jnp.concatenate([inputs, extra_input], axis=-1)
        y, new = apply(cell, state, inputs, target.mask)
        x = x + y if cfg.adds_input(i) else y
        after.append(new)
    return x, tuple(after)


def advance(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    memory: Memory,
    cache: RecurrentDecoderCache,
    tokens: Array,
    options: Options,
) -> tuple[Array, tuple[Array, ...], RecurrentDecoderCache]:
    """Read target tokens and return features, the attention, if there is one, and the next cache.

    States do not change at PAD. Dropout is applied to the embeddings, between layers and to the features.
    """
    keys = split_key(options.key, cfg.layers + 1)
    e = dropout(embed(params.embedding, tokens), options.rate, keys[0]).astype(params.map_out.w.dtype)
    target = Target(params, cfg, memory, e, tokens != PAD, keys[2:], options)
    features, a, cache = WIRINGS[cfg.wiring](target, cache)
    return dropout(features, options.rate, keys[1]), (a,) if cfg.attention_names else (), cache


RecurrentDecoderConfig.functions = kinds.DecoderFunctions(init_decoder, init_cache, advance, prepare)
