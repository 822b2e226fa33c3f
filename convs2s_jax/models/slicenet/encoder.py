"""SliceNet's encoder (Kaiser, Gomez and Chollet 2018, section 3.3): modules over words and a timing signal."""

from typing import Literal

import jax

from convs2s_jax.core.config import record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import EncoderConfig, fields_after
from convs2s_jax.models.slicenet import layers
from convs2s_jax.models.slicenet.layers import SliceNetConfig, SliceNetStep
from convs2s_jax.nn import embedding, struct
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.pooling import mean
from convs2s_jax.nn.types import Array, Key


@record
class SliceNetEncoderConfig(SliceNetConfig, EncoderConfig):
    """SliceNet's encoder.

    Attributes:
      kind: SliceNet.
      modules: number of modules. The published code has six, 1.5 times as many as in the decoder.
    """

    kind: Literal["slicenet"] = "slicenet"
    modules: int = 6

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """Source tokens that a position sees after each module."""
        return fields_after([layers.reach_of(self.shapes)] * self.modules)


@struct.dataclass
class SliceNetEncoderParams:
    """Parameters of the encoder.

    Attributes:
      embedding: embedding of source tokens.
      modules: the four steps of each module.
    """

    embedding: Embedding
    modules: tuple[tuple[SliceNetStep, ...], ...]


def init(key: Key, cfg: SliceNetEncoderConfig, *, vocabulary: int, dim: int, **_: object) -> SliceNetEncoderParams:
    """Initialise parameters: embeddings of V = vocabulary source tokens ~ N(0, sqrt(1 / E)), E = dim."""
    table_key, *keys = jax.random.split(key, cfg.modules + 1)
    return SliceNetEncoderParams(
        embedding=embedding.init(table_key, vocabulary, dim, None, std=dim**-0.5),
        modules=tuple(layers.init_steps(k, cfg.shapes, dim) for k in keys),
    )


def encode(
    params: SliceNetEncoderParams,
    cfg: SliceNetEncoderConfig,
    src: Array,
    *,
    rate: float,
    gradient_scale: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Memory:
    """Encode source tokens into a memory whose keys and values are both the output of the last module.

    Arguments are as in `protocols.Encoder`. Dropout is applied to the embeddings and to the output of each module. Of
    `execution`, only `remat` has an effect, on each module.
    """
    mask = src != PAD
    keys = split_key(key, cfg.modules + 1)
    dtype = params.modules[0][0].conv.pointwise.w.dtype
    dim = params.embedding.table.shape[1]
    words = embed(params.embedding, src).astype(dtype) * dim**0.5
    x = dropout(words + layers.timing_of(cfg, src, None, dim, dtype), rate, keys[0])

    def module(steps: tuple[SliceNetStep, ...], x: Array, key: Key | None) -> Array:
        y = layers.centred_steps(steps[:2], cfg.shapes[:2], x, mask)
        z = layers.centred_steps(steps[2:], cfg.shapes[2:], x + y, mask)
        return dropout(x + z, rate, key)

    apply = execution.with_remat(module)
    for steps, k in zip(params.modules, keys[1:], strict=True):
        x = apply(steps, x, k)
    z = scale_gradient(zero_padding(x, mask), gradient_scale)
    return Memory(keys=z, values=z, mask=mask, summary=mean(z, mask))
