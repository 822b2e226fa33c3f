"""What the recurrent decoder is configured by, made of, and remembers."""

import dataclasses
from typing import Any, Literal

import flax.struct

from convs2s_jax.core.config import check
from convs2s_jax.models.recurrent.encoder import check_stack
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.recurrent import Cell, CellName, State
from convs2s_jax.nn.recurrent_attention import AttentionName
from convs2s_jax.nn.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentDecoderConfig:
    """Recurrent decoder.

    cell, layers, units, residual, max_length: as in the encoder; attention: how positions are scored,
    none for the encoder's summary alone; wiring: which state attends and where its context goes, one of
    `recurrent_wirings.WIRINGS`: the first layer's previous state (Bahdanau et al. 2015), the top layer's current state
    (Luong et al. 2015), or that with input feeding (their section 3.3); out_dim: O, the layer before the softmax;
    tied_output: the softmax uses the embedding table (O = E).
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: CellName = "gru"
    layers: int = 1
    units: int = 256
    residual: int | None = None
    attention: AttentionName = "additive"
    wiring: Literal["previous", "current", "feeding"] = "previous"
    out_dim: int = 256
    tied_output: bool = False
    max_length: int = 1022

    def __post_init__(self) -> None:
        check_stack(self.layers, self.units, self.residual, self.max_length)
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")

    def check_dim(self, dim: int) -> None:
        """Refuse sizes that have to agree with E = dim and do not."""
        check(
            not self.tied_output or self.out_dim == dim,
            f"decoder.out_dim is {self.out_dim} with tied_output: the embedding table has {dim} columns; make the two "
            "equal",
        )
        check(
            self.attention != "dot" or self.units == dim,
            f"decoder.units is {self.units} with attention 'dot': a memory of embedding_dim {dim} is compared with "
            "states as they are; make the two equal, or use attention 'general'",
        )

    def adds_input(self, index: int) -> bool:
        """Whether the layer of this index, from 0, has a residual connection."""
        return self.residual is not None and index + 1 >= self.residual


@flax.struct.dataclass
class RecurrentDecoderParams:
    """Embedding, maps of the summary to first states, cells, attention, the layer before the softmax, softmax layer.

    first: of each layer, [E -> U] for each part of its state, side by side; map_out: to O; output: as in the
    convolutional decoder.
    """

    embedding: Embedding
    first: tuple[Affine, ...]
    cells: tuple[Cell, ...]
    attention: Any
    map_out: Affine
    output: Affine | Array


@flax.struct.dataclass
class RecurrentDecoderCache:
    """What a decoder remembers of the target so far.

    states: of each layer, after the last real token; fed: [N, O], the layer before the softmax after that token, where
    it is fed to the next step.
    """

    states: tuple[State, ...]
    fed: Array | None
