"""The convolutional encoder (section 3.2)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax

from convs2s_jax.core.config import record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.convs2s.convolutions import CONVOLUTIONS, ConvolutionConfig, DenseConfig
from convs2s_jax.models.convs2s.layers import (
    ConvLayer,
    add_residual,
    check_layers,
    gated,
    init_layers,
    mark_conv_output,
    receptive_fields,
    residual,
)
from convs2s_jax.models.convs2s.stack import apply_layers
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import EncoderConfig, check_positions
from convs2s_jax.nn import affine, convolution, embedding, struct
from convs2s_jax.nn.activation_sharding import all_gather_channels, replicate_channels, shard_channels
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.pooling import mean
from convs2s_jax.nn.types import SQRT_HALF, Array, Key


@record
class ConvEncoderConfig(EncoderConfig):
    """Convolutional encoder.

    Attributes:
      layers: from bottom to top, each (channels, width) or (channels, width, skip).
      convolution: the kind of convolution of all layers, dense, separable, lightweight or dynamic.
      positions: whether position embeddings are added (table 4 of the paper).
      max_positions: rows of the position table, two more than the longest source including its end symbol.
    """

    normalised: ClassVar[bool] = True

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 4
    convolution: ConvolutionConfig = DenseConfig()
    positions: bool = True
    max_positions: int = 1024

    def __post_init__(self) -> None:
        check_layers(self.layers, self.convolution)
        check_positions(self.max_positions)

    @property
    def max_length(self) -> int:
        """Maximum length of a source in tokens, end symbol included. Two rows of the position table are reserved."""
        return self.max_positions - 2

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """1 + (K - 1) r, summed over the layers up to each (section 3.2)."""
        return receptive_fields(self.layers, self.convolution)


@struct.dataclass
class ConvEncoderBlock:
    """Parameters of one layer.

    Attributes:
      conv: the convolution from C to 2D channels; the kind determines its structure (`convs2s.convolutions`).
      projection: [C, D] of the residual connection; None if C = D or there is no residual connection.
    """

    conv: Any
    projection: Affine | None


@struct.dataclass
class ConvEncoderParams:
    """Parameters of the encoder.

    Attributes:
      embedding: embedding of source tokens.
      map_in: the linear map [E -> C] to the channels of the first layer.
      blocks: the layers.
      map_out: the linear map back to E.
    """

    embedding: Embedding
    map_in: Affine
    blocks: tuple[ConvEncoderBlock, ...]
    map_out: Affine


def init(key: Key, cfg: ConvEncoderConfig, *, vocabulary: int, dim: int, rate: float) -> ConvEncoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, len(cfg.layers) + 3)
    keep = 1.0 - rate
    return ConvEncoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(ConvEncoderBlock(*made) for made in init_layers(keys[3:], cfg.layers, keep, cfg.convolution)),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, dim),
    )


def encode(
    params: ConvEncoderParams,
    cfg: ConvEncoderConfig,
    src: Array,
    *,
    rate: float,
    gradient_scale: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Memory:
    """Encode source tokens into a memory with keys z and values (z + e) * sqrt(0.5).

    Padding is set to zero before each convolution, so it has the same effect as the sentence boundary. The residual is
    the unmasked input (fairseq).

    Args:
      params: merged kernels.
      cfg: encoder config.
      src: [B, S] tokens with the end symbol, PAD on either side.
      rate: dropout rate on the embeddings and on the input of each convolution.
      gradient_scale: factor on the gradient that reaches z (section 3.4).
      key: random key for dropout; None for evaluation.
      execution: how the layers are executed.
    """
    mask = src != PAD
    keys = split_key(key, len(cfg.layers) + 1)
    e = replicate_channels(embed(params.embedding, src).astype(params.map_in.w.dtype))
    e = dropout(e, rate, keys[0])

    convolve = CONVOLUTIONS[cfg.convolution.kind].convolve

    def apply(layer: ConvLayer, form: DenseForm, item: Any, outputs: Sequence[Array]) -> tuple[Array, None]:
        block, own, k = item
        r = residual(outputs, layer, block.projection)
        x = all_gather_channels(dropout(zero_padding(outputs[-1], mask), rate, k))
        y = convolution.centred(convolve(block.conv, own, x, form), x, (layer.width - 1) * own.dilation)
        return add_residual(gated(mark_conv_output(y, form)), r), None

    items = [
        (block, cfg.convolution.at(i), k) for i, (block, k) in enumerate(zip(params.blocks, keys[1:], strict=True))
    ]
    x, _ = apply_layers(apply, cfg.layers, items, shard_channels(linear(params.map_in, e)), execution)
    z = scale_gradient(zero_padding(replicate_channels(linear(params.map_out, x)), mask), gradient_scale)
    return Memory(keys=z, values=(z + e) * SQRT_HALF, mask=mask, summary=mean(z, mask))
