"""The LightConv and DynamicConv encoder: lightweight or dynamic convolutions (Wu et al. 2019)."""

import jax

from convs2s_jax.core.config import record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.light import layers
from convs2s_jax.models.light.layers import FeedForward, LightConfig, LightConvolution, residual
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import EncoderConfig
from convs2s_jax.nn import struct
from convs2s_jax.nn.depthwise import depthwise
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.pooling import mean
from convs2s_jax.nn.sharded_params import any_sharded, gather
from convs2s_jax.nn.types import Array, Key


@record
class LightEncoderConfig(LightConfig, EncoderConfig):
    """Encoder of lightweight or dynamic convolutions; seven layers in the paper."""


@struct.dataclass
class LightEncoderBlock:
    """Parameters of one layer: its two sublayers.

    Attributes:
      convolution: the first.
      feed_forward: the second.
    """

    convolution: LightConvolution
    feed_forward: FeedForward


@struct.dataclass
class LightEncoderParams:
    """Parameters of the encoder.

    Attributes:
      embedding: embedding of source tokens.
      blocks: the layers.
      norm: the final layer norm of a pre-norm stack; None for post-norm sublayers.
    """

    embedding: Embedding
    blocks: tuple[LightEncoderBlock, ...]
    norm: LayerNorm | None


def init(key: Key, cfg: LightEncoderConfig, *, vocabulary: int, dim: int, **_: object) -> LightEncoderParams:
    """Initialise parameters as in fairseq: V = vocabulary, E = dim. They do not depend on dropout."""
    keys = jax.random.split(key, 2 * len(cfg.layers) + 1)
    return LightEncoderParams(
        embedding=layers.init_embedding(keys[0], cfg, vocabulary, dim),
        blocks=tuple(
            LightEncoderBlock(
                convolution=layers.init_convolution(keys[2 * i + 1], cfg, width, dim),
                feed_forward=layers.init_feed_forward(keys[2 * i + 2], cfg, dim),
            )
            for i, width in enumerate(cfg.layers)
        ),
        norm=layers.init_norm_after(cfg, dim),
    )


def encode(
    params: LightEncoderParams,
    cfg: LightEncoderConfig,
    src: Array,
    *,
    rate: float,
    gradient_scale: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Memory:
    """Encode source tokens into a memory whose keys and values are both the output of the last layer.

    Arguments are as in `protocols.Encoder`. Padding is set to zero before each convolution, so it acts like the end of
    the sentence. Dropout is applied to the embeddings and to the output of each sublayer. Of `execution`, only `remat`
    has an effect, on each layer.
    """
    mask = src != PAD
    keys = split_key(key, len(cfg.layers) + 1)

    def layer(block: LightEncoderBlock, width: int, x: Array, key: Key | None) -> Array:
        block, k = gather(block), split_key(key, 4)

        def centred(w: Array, z: Array) -> tuple[Array, None]:
            return depthwise(w, z, padding=((width - 1) // 2, width // 2)), None

        def convolve(x: Array) -> tuple[Array, None]:
            return layers.convolve(block.convolution, cfg, x, centred, mask=mask, key=k[0])

        def feed_forward(x: Array) -> tuple[Array, None]:
            return layers.feed_forward(block.feed_forward, cfg, x, k[1]), None

        x, _ = residual(block.convolution.norm, cfg, x, convolve, rate, k[2])
        return residual(block.feed_forward.norm, cfg, x, feed_forward, rate, k[3])[0]

    apply = execution.with_remat(layer, sharded=any_sharded(params.blocks), static=(1,))
    dtype = params.blocks[0].convolution.map_in.w.dtype
    x = dropout(layers.embed(params.embedding, cfg, src).astype(dtype), rate, keys[0])
    for block, width, k in zip(params.blocks, cfg.layers, keys[1:], strict=True):
        x = apply(block, width, x, k)
    x = layers.norm_after(params.norm, x)
    z = scale_gradient(zero_padding(x, mask), gradient_scale)
    return Memory(keys=z, values=z, mask=mask, summary=mean(z, mask))
