"""What the encoder and decoder of lightweight and dynamic convolutions are made of, remember and read."""

import flax.struct

from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.multihead import Multihead, Source
from convs2s_jax.nn.types import Array


@flax.struct.dataclass
class Lightweight:
    """A kernel for each head: `scores` [K, H], whose softmax over K it is."""

    scores: Array


@flax.struct.dataclass
class Dynamic:
    """A kernel for each head and position: `maker` [C, K, H] maps a position to its scores."""

    maker: Array


@flax.struct.dataclass
class Convolution:
    """The first part of a layer: maps [E -> C] (or 2C before a GLU) and [C -> E] around a convolution."""

    map_in: Affine
    kernel: Lightweight | Dynamic
    map_out: Affine
    norm: LayerNorm


@flax.struct.dataclass
class Attention:
    """The part that reads the source."""

    heads: Multihead
    norm: LayerNorm


@flax.struct.dataclass
class FeedForward:
    """The last part of a layer: maps [E -> F] and [F -> E] around a ReLU."""

    map_in: Affine
    map_out: Affine
    norm: LayerNorm


@flax.struct.dataclass
class EncoderBlock:
    """One layer of the encoder."""

    convolution: Convolution
    feed_forward: FeedForward


@flax.struct.dataclass
class DecoderBlock:
    """One layer of the decoder."""

    convolution: Convolution
    attention: Attention
    feed_forward: FeedForward


@flax.struct.dataclass
class LightEncoderParams:
    """Embedding, layers, and the norm after the last where norms stand before their parts."""

    embedding: Embedding
    blocks: tuple[EncoderBlock, ...]
    norm: LayerNorm | None


@flax.struct.dataclass
class LightDecoderParams:
    """The same and the softmax layer: `output_kernel` [E, V], None where it is the embedding table. It has no bias."""

    embedding: Embedding
    blocks: tuple[DecoderBlock, ...]
    norm: LayerNorm | None
    output_kernel: Array | None


@flax.struct.dataclass
class LightDecoderCache:
    """What a decoder remembers of the target so far.

    length: [N], real tokens read; histories: for each layer its convolution's last K - 1 inputs [N, K - 1, C].
    """

    length: Array
    histories: tuple[Array, ...]


@flax.struct.dataclass
class PreparedMemory:
    """A memory as the attention of each layer reads it, and its mask [B, S]."""

    sources: tuple[Source, ...]
    mask: Array
