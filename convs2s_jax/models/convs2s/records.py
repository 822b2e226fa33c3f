"""What the convolutional decoder is made of, remembers and reads."""

from typing import Any

import flax.struct

from convs2s_jax.models.convs2s.lookup import Tables, Words
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.attention import Attention, Source
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.types import Array


@flax.struct.dataclass
class Block:
    """One layer: convolution, the projection of its residual and its attention, None where it has none."""

    conv: Any
    projection: Affine | None
    attention: Attention | None


@flax.struct.dataclass
class ConvDecoderParams:
    """Embedding, map to the first layer's channels, layers, map to O, softmax layer.

    `output` maps O to V; with a tied output it is the bias [V] alone and the kernel is the embedding table.
    """

    embedding: Embedding
    map_in: Affine
    blocks: tuple[Block, ...]
    map_out: Affine
    output: Affine | Array


@flax.struct.dataclass
class ReadyParams(ConvDecoderParams):
    """Parameters for decoding token by token: `first` stands for `map_in` and the first convolution, but its `bias`."""

    first: Tables
    bias: Array


@flax.struct.dataclass
class ConvDecoderCache:
    """What a decoder remembers of the target so far.

    length: [N], real tokens read; histories: for each layer the last inputs that its convolution sees, [N, K - 1, C] if
    that is dense, or the words that they come from where the first layer is looked up.
    """

    length: Array
    histories: tuple[Array | Words, ...]


@flax.struct.dataclass
class PreparedMemory:
    """A memory as the layers of one decoder read it: `sources` (None for layers without attention) and its mask."""

    sources: tuple[Source | None, ...]
    mask: Array
