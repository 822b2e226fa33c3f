"""The convolutional decoder with multi-step attention (sections 3.2 and 3.3)."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.config import check, record
from convs2s_jax.models import output
from convs2s_jax.models.convs2s.convolutions import CONVOLUTIONS, ConvolutionConfig, DenseConfig
from convs2s_jax.models.convs2s.layers import (
    ConvLayer,
    add_residual,
    check_layers,
    gated,
    init_layers,
    layer_channels,
    mark_conv_output,
    receptive_fields,
    residual,
)
from convs2s_jax.models.convs2s.stack import apply_layers
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderConfig, check_positions, check_tied
from convs2s_jax.nn import affine, attention, convolution, embedding, struct
from convs2s_jax.nn.activation_sharding import all_gather_channels, replicate_channels, shard_channels
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import MultiStepAttention
from convs2s_jax.nn.convolution import DenseForm
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed, length_after
from convs2s_jax.nn.initialisation import init_each
from convs2s_jax.nn.types import Array, Key


@record
class ConvDecoderConfig(DecoderConfig):
    """Convolutional decoder.

    Attributes:
      layers: from bottom to top, each (channels, width) or (channels, width, skip).
      convolution: the kind of convolution of all layers, dense, separable, lightweight or dynamic.
      attention_layers: which layers attend, counted from 1 as in table 5 of the paper. None for all; () for a language
        model, which has no source.
      out_dim: output size O of the linear map before the softmax.
      tied_output: whether the softmax uses the embedding table (O = E).
      positions: whether position embeddings are added.
      max_positions: rows of the position table, two more than the longest target including its end symbol.
    """

    normalised: ClassVar[bool] = True

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 3
    convolution: ConvolutionConfig = DenseConfig()
    attention_layers: tuple[int, ...] | None = None
    out_dim: int = 256
    tied_output: bool = False
    positions: bool = True
    max_positions: int = 1024

    def __post_init__(self) -> None:
        check_layers(self.layers, self.convolution)
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")
        check_positions(self.max_positions)
        if self.attention_layers is not None:
            for number in self.attention_layers:
                check(
                    1 <= number <= len(self.layers),
                    f"attention_layers contains {number}: layers are numbered from 1 to {len(self.layers)}",
                )
            twice = [a for a, b in itertools.pairwise(sorted(self.attention_layers)) if a == b]
            check(not twice, f"attention_layers contains {twice[0] if twice else 0} twice: list each layer once")

    @property
    def max_length(self) -> int:
        """Maximum length of a target in tokens, end symbol included. Two rows of the position table are reserved."""
        return self.max_positions - 2

    def check_dim(self, dim: int) -> None:
        """Reject a tied output whose O is not E = dim."""
        if self.tied_output:
            check_tied(self.out_dim, dim)

    def attends(self, index: int) -> bool:
        """Whether the layer with this index, counted from 0, attends."""
        return self.attention_layers is None or index + 1 in self.attention_layers

    def features_dim(self, _dim: int, /) -> int:
        """Return the number of output features, O = `out_dim`."""
        return self.out_dim

    @property
    def reads_memory(self) -> bool:
        """Whether any layer attends."""
        return len(self.attention_names) > 0

    @property
    def attention_names(self) -> tuple[str, ...]:
        """Names of the layers that attend, counted from 1."""
        return tuple(f"layer {i + 1}" for i in range(len(self.layers)) if self.attends(i))

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """1 + (K - 1) r, summed over the layers up to each (section 3.2)."""
        return receptive_fields(self.layers, self.convolution)

    @property
    def gradient_scale(self) -> float:
        """1 / 2n for n layers that attend (section 3.4; the factor 2 is from fairseq), 1 if none does."""
        count = len(self.attention_names)
        return 1.0 / (2 * count) if count else 1.0


@struct.dataclass
class ConvDecoderBlock:
    """Parameters of one layer.

    Attributes:
      conv: the convolution from C to 2D channels; the kind determines its structure (`convs2s.convolutions`).
      projection: [C, D] of the residual connection; None if C = D or there is no residual connection.
      attention: parameters of the attention; None if the layer does not attend.
    """

    conv: Any
    projection: Affine | None
    attention: MultiStepAttention | None


@struct.dataclass
class ConvDecoderParams:
    """Parameters of the decoder.

    Attributes:
      embedding: embedding of target tokens.
      map_in: the linear map [E -> C] to the channels of the first layer.
      blocks: the layers.
      map_out: the linear map to O.
      output: the softmax layer [O -> V]; with a tied output only the bias [V], since the kernel is the embedding table.
    """

    embedding: Embedding
    map_in: Affine
    blocks: tuple[ConvDecoderBlock, ...]
    map_out: Affine
    output: Affine | Array


@struct.dataclass
class ConvDecoderCache:
    """The decoder state after the target tokens read so far.

    Attributes:
      length: [N], real tokens read.
      histories: the last inputs of the convolution of each layer, [N, (K - 1) r, C].
    """

    length: Array
    histories: tuple[Array, ...]


def init(key: Key, cfg: ConvDecoderConfig, *, vocabulary: int, dim: int, rate: float) -> ConvDecoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, 2 * len(cfg.layers) + 4)
    keep = 1.0 - rate
    convolutions = init_layers(keys[4::2], cfg.layers, keep, cfg.convolution)
    channels = [layer.channels if cfg.attends(i) else None for i, layer in enumerate(cfg.layers)]
    attentions = init_each(partial(_init_attention, dim=dim), keys[5::2], channels)
    blocks = [
        ConvDecoderBlock(conv=conv, projection=projection, attention=attends)
        for (conv, projection), attends in zip(convolutions, attentions, strict=True)
    ]
    return ConvDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(blocks),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, cfg.out_dim),
        output=output.init(keys[3], cfg.out_dim, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def _init_attention(key: Key, channels: int | None, *, dim: int) -> MultiStepAttention | None:
    """Initialise the attention of a layer with this number of channels; None for a layer that does not attend."""
    return None if channels is None else attention.init(key, channels, dim)


def prepare(_params: ConvDecoderParams, _cfg: ConvDecoderConfig, memory: Memory) -> Memory:
    """Return the memory unchanged, since there is nothing to prepare (for many short calls see `convs2s.lookup`)."""
    return memory


def init_cache(params: ConvDecoderParams, cfg: ConvDecoderConfig, _memory: Any, rows: int) -> ConvDecoderCache:
    """Create the cache before the first token, with zero histories, so that the first steps see zeros on the left."""
    dtype = params.map_in.w.dtype
    histories = [
        jnp.zeros((rows, (layer.width - 1) * cfg.convolution.at(i).dilation, size.inputs), dtype)
        for i, (layer, size) in enumerate(zip(cfg.layers, layer_channels(cfg.layers), strict=True))
    ]
    return ConvDecoderCache(length=jnp.zeros(rows, jnp.int32), histories=tuple(histories))


def advance(
    params: ConvDecoderParams,
    cfg: ConvDecoderConfig,
    memory: Memory,
    cache: ConvDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, tuple[Array, ...], ConvDecoderCache]:
    """Read any number of target tokens: all of them in training, one in decoding.

    Args:
      params: merged kernels.
      cfg: decoder config.
      memory: memory of B sentences.
      cache: cache of N = B * W rows, the W hypotheses of a sentence adjacent.
      tokens: [N, T], the target shifted right by one; PAD only on the right.
      rate: dropout rate on the embeddings, the input of each convolution and the features.
      key: random key for dropout; None for evaluation.
      execution: how the layers are executed; a single token is processed without a scan over layers.

    Returns:
      Features [N, T, O] for `logits`; the attention [N, T, S] of each layer that attends; the next cache.
    """
    keys = split_key(key, len(cfg.layers) + 2)
    g = replicate_channels(embed(params.embedding, tokens, cache.length).astype(params.map_in.w.dtype))
    g = dropout(g, rate, keys[0])
    convolve = CONVOLUTIONS[cfg.convolution.kind].convolve

    def attend(maps: MultiStepAttention, h: Array) -> tuple[Array, Array]:
        return attention.attend(maps, h, g, memory.keys, memory.values, memory.mask)

    def apply(layer: ConvLayer, form: DenseForm, item: Any, outputs: Sequence[Array]) -> tuple[Array, Any]:
        block, own, history, k = item
        x = all_gather_channels(dropout(outputs[-1], rate, k))
        y, after = convolution.causal(convolve(block.conv, own, x, form), history, x)
        x, a = after_convolution(block, layer, mark_conv_output(y, form), outputs, attend)
        return x, (after, a)

    if tokens.shape[1] == 1:  # a scan would stack the kernels of its layers at every step (decision 0008)
        execution = dataclasses.replace(execution, scan_layers=0)
    own = [cfg.convolution.at(i) for i in range(len(cfg.layers))]
    items = list(zip(params.blocks, own, cache.histories, keys[2:], strict=True))
    x, made = apply_layers(apply, cfg.layers, items, shard_channels(linear(params.map_in, g)), execution)
    features = dropout(replicate_channels(linear(params.map_out, x)), rate, keys[1])
    after = ConvDecoderCache(length=length_after(cache.length, tokens), histories=tuple(history for history, _ in made))
    return features, tuple(a for _, a in made if a is not None), after


def after_convolution(
    block: ConvDecoderBlock,
    layer: ConvLayer,
    y: Array,
    outputs: Sequence[Array],
    attend: Callable[[MultiStepAttention, Array], tuple[Array, Array]],
) -> tuple[Array, Array | None]:
    """The rest of a layer: gate, attention and residual connection.

    Args:
      block: parameters.
      layer: its entry in the config.
      y: [N, T, 2D], output of its convolution.
      outputs: the input of the first layer, then the output of each layer so far.
      attend: (parameters, h [N, T, D]) -> the attention output for h, and the weights [N, T, S].

    Returns:
      The output of the layer [N, T, D], and the attention weights or None.
    """
    h, a = gated(y), None
    if block.attention is not None:
        h, a = attend(block.attention, h)
    return add_residual(h, residual(outputs, layer, block.projection)), a


def output_layer(params: ConvDecoderParams, dtype: DTypeLike) -> Affine:
    """Return the softmax layer (section 3.2, last equation); see `models.output.layer`."""
    return output.layer(params.output, params.embedding, dtype)
