"""The recurrent encoder: a stack of GRU or LSTM layers. The lower ones can be bidirectional."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import ITEMS, check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import EncoderConfig
from convs2s_jax.nn import affine, embedding, recurrent, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.recurrent import CELLS, Cell, CellName, CellState
from convs2s_jax.nn.types import Array, Key


@record
class RecurrentEncoderConfig(EncoderConfig):
    """Recurrent encoder.

    Attributes:
      kind: the recurrent encoder.
      cell: GRU or LSTM.
      layers: number of layers.
      units: number of units U of one direction.
      bidirectional: number of bidirectional layers, counted from the bottom (all in Bahdanau et al. 2015, 1 in Wu et
        al. 2016).
      residual: the first layer, counted from 1, with a residual connection; all layers above it have one too (3 in Wu
        et al. 2016, equation 6). None for no residual connections.
      max_length: maximum length of a source in tokens, including its end symbol.
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: CellName = "gru"
    layers: int = 1
    units: int = 256
    bidirectional: int = 1
    residual: int | None = None
    max_length: int = 1022

    def __post_init__(self) -> None:
        check_stack(self.layers, self.units, self.residual, self.max_length)
        check(
            0 <= self.bidirectional <= self.layers,
            f"bidirectional is {self.bidirectional}: expected a number of bidirectional layers between 0 and "
            f"{self.layers}",
        )
        changes = (i for i in range(1, self.layers) if self.adds_input(i) and self.outputs(i - 1) != self.outputs(i))
        odd, least = next(changes, None), self.bidirectional + 2
        check(
            odd is None,
            f"residual is {self.residual}: a layer adds its input to its output, and in layer {(odd or 0) + 1} their "
            f"sizes differ; use {f'{least} or more' if least <= self.layers else 'None'}, or set bidirectional to "
            f"{self.layers} or at most {(self.residual or 2) - 2}",
        )

    def adds_input(self, index: int) -> bool:
        """Whether the layer with this index, counted from 0, has a residual connection."""
        return self.residual is not None and index + 1 >= self.residual

    def outputs(self, index: int) -> int:
        """Return the output channels of the layer with this index, counted from 0."""
        return 2 * self.units if index < self.bidirectional else self.units


def check_stack(layers: int, units: int, residual: int | None, max_length: int) -> None:
    """Reject invalid sizes of a stack of cells, in encoder or decoder."""
    check(layers >= 1, f"layers is {layers}: a recurrent stack has at least one; use 1 or more")
    check(layers <= ITEMS, f"layers is {layers}: use at most {ITEMS}")
    check(units >= 1, f"units is {units}: use 1 or more")
    check(
        residual is None or 2 <= residual <= layers,
        f"residual is {residual}: the first of {layers} layers reads words, and layer 2 is the first that can add its "
        "input; use 2 up to the number of layers, or None",
    )
    check(max_length >= 2, f"max_length is {max_length}: a word and its end symbol need two; use 2 or more")


@struct.dataclass
class EncoderLayer:
    """One layer.

    Attributes:
      forward: the cell that runs forward in time.
      backward: the cell that runs backward, or None.
    """

    forward: Cell
    backward: Cell | None


@struct.dataclass
class RecurrentEncoderParams:
    """Parameters of the recurrent encoder.

    Attributes:
      embedding: embedding of source tokens.
      layers: from bottom to top.
      map_out: the linear map to E, for the last layer's outputs and its final states.
    """

    embedding: Embedding
    layers: tuple[EncoderLayer, ...]
    map_out: Affine


def init(key: Key, cfg: RecurrentEncoderConfig, *, vocabulary: int, dim: int, rate: float) -> RecurrentEncoderParams:
    """Initialise parameters (`nn.recurrent.init`) for V = vocabulary, E = dim and dropout `rate`."""
    kind = CELLS[cfg.cell]
    keys = jax.random.split(key, 2 * cfg.layers + 2)
    layers = []
    for i in range(cfg.layers):
        inputs = dim if i == 0 else cfg.outputs(i - 1)
        forward, backward = (
            recurrent.init(k, kind, inputs, cfg.units, keep=1.0 - rate) for k in keys[2 + 2 * i : 4 + 2 * i]
        )
        layers.append(EncoderLayer(forward=forward, backward=backward if i < cfg.bidirectional else None))
    return RecurrentEncoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        layers=tuple(layers),
        map_out=affine.init(keys[1], cfg.outputs(cfg.layers - 1), dim, keep=1.0 - rate),
    )


def encode(
    params: RecurrentEncoderParams,
    cfg: RecurrentEncoderConfig,
    src: Array,
    *,
    rate: float,
    gradient_scale: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Memory:
    """Encode source tokens: keys and values are W y_s + b for the last layer's outputs y_s = [forward; backward].

    The summary is the same map of the last layer's final states: forward at the last word, backward at the first.
    (Bahdanau et al. 2015 have no map. Their decoder reads 2 U channels, and their summary is the backward half.)

    Arguments are as in `protocols.Encoder`. Dropout is applied to the embeddings, between layers and to the last
    outputs. Of `execution`, only `remat` has an effect, on each layer.
    """
    mask = src != PAD
    dtype = params.map_out.w.dtype
    keys = split_key(key, cfg.layers + 1)

    apply = execution.with_remat(partial(_layer, cfg))
    x = embed(params.embedding, src).astype(dtype)
    for i, (cells, k) in enumerate(zip(params.layers, keys, strict=False)):
        y, last = apply(cells, dropout(x, rate, k), mask)
        x = x + y if cfg.adds_input(i) else y
    z = linear(params.map_out, dropout(x, rate, keys[-1]))
    z = scale_gradient(zero_padding(z, mask), gradient_scale)
    return Memory(keys=z, values=z, mask=mask, summary=linear(params.map_out, last))


def _layer(cfg: RecurrentEncoderConfig, layer: EncoderLayer, x: Array, mask: Array) -> tuple[Array, Array]:
    """Run one layer on x [B, S, C]; return outputs [B, S, D] and final states [B, D], with D = 2 U if bidirectional."""
    kind = CELLS[cfg.cell]

    def direction(cell: Cell, reverse: bool) -> tuple[Array, CellState]:
        start = recurrent.zeros(kind, len(x), cfg.units, cell.state.w.dtype)
        return recurrent.run(kind, cell, start, x, mask, reverse=reverse)

    y, (h, *_) = direction(layer.forward, False)
    if layer.backward is not None:
        other, (g, *_) = direction(layer.backward, True)
        y, h = jnp.concatenate([y, other], axis=-1), jnp.concatenate([h, g], axis=-1)
    return y, h.astype(y.dtype)
