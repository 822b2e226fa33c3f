"""ConvS2S (Gehring et al. 2017): stacks of convolutions with gated linear units, and multi-step attention."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import convs2s_fast, kinds
from convs2s_jax.models.convolutions import DenseConfig
from convs2s_jax.models.convs2s_fast import Tables, Words
from convs2s_jax.models.execution import PRODUCT, ExecutionConfig
from convs2s_jax.models.factored_convolutions import ConvolutionConfig
from convs2s_jax.models.kinds import Cache, Memory, Options
from convs2s_jax.nn import affine, attention, convolution, embedding, output, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import MultiStepAttention
from convs2s_jax.nn.convolution import DenseForm, glu
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed, length_after, position_rows
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.masking import mean, zero_padding
from convs2s_jax.nn.sharding import all_gather_channels, replicate_channels, shard_channels
from convs2s_jax.nn.types import SQRT_HALF, Array, Key, Tree
from convs2s_jax.nn.weight_norm import Normalised


@record(kw_only=False)
class ConvLayer:
    """One convolution and GLU, written as (channels, width) or (channels, width, skip) in configs.

    Attributes:
      channels: output channels of the GLU.
      width: kernel width K.
      skip: how many layers back the residual connection starts, 0 for none (fairseq's third number; always 1 in the
        paper).
    """

    channels: int
    width: int
    skip: int = 1

    def __post_init__(self) -> None:
        check(self.channels >= 1, f"channels is {self.channels}: a layer has at least one channel; use 1 or more")
        check(self.width >= 1, f"width is {self.width}: a convolution sees at least one position; use 1 or more")
        check(self.skip >= 0, f"skip is {self.skip}: a residual starts 1 or more layers back; use 0 for none")


def layer_channels(layers: Sequence[ConvLayer]) -> list[tuple[int, int | None]]:
    """Return for each layer the channels of its input, and where its residual starts, None if it has none.

    The first input has the channels of the first layer.
    """
    outputs = [layers[0].channels]
    result = []
    for layer in layers:
        result.append((outputs[-1], outputs[-layer.skip] if layer.skip else None))
        outputs.append(layer.channels)
    return result


@record
class ConvStack(kinds.HasPositions):
    """Config fields that encoder and decoder share: a stack of convolutions over embeddings.

    Attributes:
      layers: from bottom to top, each (channels, width) or (channels, width, skip).
      convolution: the kind of convolution of all layers, dense, separable, lightweight or dynamic.
      positions: whether position embeddings are added (table 4 of the paper).
      max_positions: rows of the position table, two more than the longest sequence including its end symbol.
    """

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 4
    convolution: ConvolutionConfig = DenseConfig()
    positions: bool = True
    max_positions: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.layers
        check(len(layers) > 0, "layers is empty: a convolutional stack has at least one layer, such as [(256, 3)]")
        for i, layer in enumerate(layers):
            rule = f"layers[{i}].skip is {layer.skip}: only {i + 1} earlier outputs exist there; use at most {i + 1}"
            check(layer.skip <= i + 1, rule)
        for inputs, _ in layer_channels(layers):
            self.convolution.check_inputs(inputs)

    @property
    def reaches(self) -> list[int]:
        """Inputs (K - 1) r that an output of each layer sees besides its own, width K, dilation r."""
        return [(layer.width - 1) * self.convolution.at(i).dilation for i, layer in enumerate(self.layers)]


@record
class ConvEncoderConfig(ConvStack, kinds.EncoderConfig):
    """Convolutional encoder."""


@record
class ConvDecoderConfig(ConvStack, kinds.DecoderConfig):
    """Convolutional decoder.

    Attributes:
      attention_layers: which layers attend, counted from 1 as in table 5 of the paper. None for all; () for a language
        model, which has no source.
      out_dim: output size O of the linear map before the softmax.
      tied_output: whether the softmax uses the embedding table (O = E).
    """

    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 3
    attention_layers: tuple[int, ...] | None = None
    out_dim: int = 256
    tied_output: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")
        numbers, count = self.attention_layers or (), len(self.layers)
        for number in numbers:
            rule = f"attention_layers contains {number}: layers are numbered from 1 to {count}"
            check(1 <= number <= count, rule)
            check(numbers.count(number) == 1, f"attention_layers contains {number} twice: list each layer once")

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
    def gradient_scale(self) -> float:
        """1 / 2n for n layers that attend (section 3.4; the factor 2 is from fairseq), 1 if none does."""
        count = len(self.attention_names)
        return 1.0 / (2 * count) if count else 1.0


@struct.dataclass
class ConvBlock:
    """Parameters of one layer.

    Attributes:
      conv: the convolution from C to 2D channels; the kind determines its structure (`convolutions`).
      projection: [C, D] of the residual connection; None if C = D or there is no residual connection.
      attention: None if the layer does not attend, as in an encoder.
    """

    conv: Any
    projection: Affine | None
    attention: MultiStepAttention | None = None


@struct.dataclass
class ConvEncoderParams(Normalised):
    """Parameters of the encoder: an embedding, a map [E -> C] to the first layer, the layers, and a map back to E.

    They are trained with weight normalisation (section 3.5).
    """

    embedding: Embedding
    map_in: Affine
    blocks: tuple[ConvBlock, ...]
    map_out: Affine


@struct.dataclass
class ConvDecoderParams(ConvEncoderParams):
    """Parameters of the decoder: those of an encoder, whose last map is to the O features, and the softmax layer.

    Attributes:
      output: the softmax layer [O -> V], or only its bias [V] if the kernel is the embedding table.
      tables: of the first layer, from `convs2s_fast.precompute`; None otherwise.
      maps_source: whether `prepare` maps the source for each layer, as after `precompute`; static.
    """

    output: Affine | Array
    tables: Tables | None = None
    maps_source: bool = struct.field(pytree_node=False, default=False)


def init_blocks(keys: Key, cfg: ConvStack, keep: float) -> list[ConvBlock]:
    """Initialise the convolution of each layer, from C to 2D channels, and its residual's projection [C, D] or None."""
    blocks = []
    for i, (key, layer, (inputs, source)) in enumerate(zip(keys, cfg.layers, layer_channels(cfg.layers), strict=True)):
        conv_key, projection_key = jax.random.split(key)
        own = cfg.convolution.at(i)
        conv = own.functions.init(conv_key, own, layer.width, inputs, 2 * layer.channels, keep)
        projection = None
        if source is not None and source != layer.channels:
            projection = affine.init(projection_key, source, layer.channels)
        blocks.append(ConvBlock(conv, projection))
    return blocks


def init_encoder(key: Key, cfg: ConvEncoderConfig, vocabulary: int, dim: int, rate: float) -> ConvEncoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, len(cfg.layers) + 3)
    keep = 1.0 - rate
    return ConvEncoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(init_blocks(keys[3:], cfg, keep)),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, dim),
    )


def init_decoder(key: Key, cfg: ConvDecoderConfig, vocabulary: int, dim: int, rate: float) -> ConvDecoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, 2 * len(cfg.layers) + 4)
    keep = 1.0 - rate
    blocks = init_blocks(keys[4::2], cfg, keep)
    for i, (k, layer) in enumerate(zip(keys[5::2], cfg.layers, strict=True)):
        if cfg.attends(i):
            blocks[i] = dataclasses.replace(blocks[i], attention=attention.init(k, layer.channels, dim))
    return ConvDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(blocks),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, cfg.out_dim),
        output=output.init(keys[3], cfg.out_dim, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def encode(params: ConvEncoderParams, cfg: ConvEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens [B, S] into a memory with keys z and values (z + e) * sqrt(0.5).

    Padding is set to zero before each convolution, so it has the same effect as the sentence boundary. The residual is
    the unmasked input (fairseq). Dropout is applied to the embeddings and to the input of each convolution.
    """
    mask, rate, form = src != PAD, options.rate, options.execution.convolution
    keys = split_key(options.key, len(cfg.layers) + 1)
    e = replicate_channels(embed(params.embedding, src).astype(params.map_in.w.dtype))
    e = dropout(e, rate, keys[0])

    def apply(layer: ConvLayer, own: ConvolutionConfig, item: Any, outputs: Sequence[Array]) -> tuple[Array, None]:
        block, k = item
        x = all_gather_channels(dropout(zero_padding(outputs[-1], mask), rate, k))
        convolve = own.functions.convolve(block.conv, own, x, form)
        y = convolution.centred(convolve, x, (layer.width - 1) * own.dilation)
        return add_residual(gated(y, form), outputs, layer, block.projection), None

    items = list(zip(params.blocks, keys[1:], strict=True))
    x, _ = apply_layers(apply, cfg, items, shard_channels(linear(params.map_in, e)), options.execution)
    z = scale_gradient(zero_padding(replicate_channels(linear(params.map_out, x)), mask), options.gradient_scale)
    return Memory(keys=z, values=(z + e) * SQRT_HALF, mask=mask, summary=mean(z, mask))


def prepare(params: ConvDecoderParams, _cfg: ConvDecoderConfig, memory: Memory) -> Memory:
    """Map the source for each layer if `params.maps_source`, for decoding token by token; else layers read it as is."""
    return convs2s_fast.map_source(params, memory) if params.maps_source else memory


def init_cache(params: ConvDecoderParams, cfg: ConvDecoderConfig, _memory: Memory, rows: int) -> Cache:
    """Create the cache before the first token, with zero histories, so that the first steps see zeros on the left.

    A first layer with tables has the words of its history instead.
    """
    dtype = params.map_in.w.dtype
    sizes = zip(cfg.reaches, layer_channels(cfg.layers), strict=True)
    histories: list[Any] = [jnp.zeros((rows, reach, inputs), dtype) for reach, (inputs, _) in sizes]
    if params.tables is not None:
        histories[0] = convs2s_fast.no_words(params.tables, rows)
    return Cache(length=jnp.zeros(rows, jnp.int32), histories=tuple(histories))


def advance(
    params: ConvDecoderParams, cfg: ConvDecoderConfig, memory: Memory, cache: Cache, tokens: Array, options: Options
) -> tuple[Array, tuple[Array, ...], Cache]:
    """Read target tokens [N, T]; return features [N, T, O], the attention of each layer that attends and the cache.

    Dropout is applied to the embeddings, the input of each convolution and the features.
    """
    keys, rate, form = split_key(options.key, len(cfg.layers) + 2), options.rate, options.execution.convolution
    g = replicate_channels(embed(params.embedding, tokens, cache.length).astype(params.map_in.w.dtype))
    g, tables = dropout(g, rate, keys[0]), params.tables
    words = Words(tokens=tokens, places=position_rows(tokens, cache.length))
    attend = convs2s_fast.attend if memory.prepared else attention.attend

    def apply(layer: ConvLayer, own: ConvolutionConfig, item: Any, outputs: Sequence[Array]) -> tuple[Array, Any]:
        block, history, values, k = item
        if tables is not None and isinstance(history, Words):
            y, history = convs2s_fast.convolve(tables, history, words)
        else:
            x = all_gather_channels(dropout(outputs[-1], rate, k))
            y, history = convolution.causal(own.functions.convolve(block.conv, own, x, form), history, x)
        h, a = gated(y, form), None
        if block.attention is not None:
            h, a = attend(block.attention, h, g, memory.keys, values, memory.mask)
        return add_residual(h, outputs, layer, block.projection), (history, a)

    values = memory.values if memory.prepared else [memory.values] * len(cfg.layers)
    items = list(zip(params.blocks, cache.histories, values, keys[2:], strict=True))
    x = linear(params.map_in, g) if tables is None else convs2s_fast.read(tables, words).astype(g.dtype)
    x, made = apply_layers(apply, cfg, items, shard_channels(x), options.execution)
    features = dropout(replicate_channels(linear(params.map_out, x)), rate, keys[1])
    after = Cache(length=length_after(cache.length, tokens), histories=tuple(history for history, _ in made))
    return features, tuple(a for _, a in made if a is not None), after


def gated(y: Array, form: DenseForm) -> Array:
    """Apply the GLU to a convolution's output: [B, T, 2D] to [B, T, D]. Recomputation sees whether y is a product."""
    return shard_channels(glu(checkpoint_name(y, PRODUCT) if form == "products" else y))


def add_residual(x: Array, outputs: Sequence[Array], layer: ConvLayer, projection: Affine | None) -> Array:
    """Return (x + r) * sqrt(0.5), which preserves the variance (section 3.4), or x if the layer has no residual.

    r is an earlier output, projected if channels change (section 3.2).
    """
    if layer.skip == 0:
        return x
    r = outputs[-layer.skip]
    r = r if projection is None else linear(projection, r)
    return shard_channels((x + r) * SQRT_HALF)


def apply_layers(
    layer: Callable[..., tuple[Array, Tree]],
    cfg: ConvStack,
    items: Sequence[Tree],
    x: Array,
    execution: ExecutionConfig,
) -> tuple[Array, list[Tree]]:
    """Apply the layers of a stack to x [B, T, C]; return the output of the last, and the further results of each.

    `layer` maps an entry of the stack, its convolution, its item (parameters and inputs) and all outputs before it.
    """
    outputs, made = [x], list[Tree]()
    for i, item in enumerate(items):
        apply = execution.with_remat(partial(layer, cfg.layers[i], cfg.convolution.at(i)))
        x, further = apply(item, outputs)
        if x.shape[1] > 1:  # later layers read x instead of recomputing it; a single position is cheap
            x = jax.lax.optimization_barrier(x)
        outputs.append(x)
        made.append(further)
    return x, made


ConvEncoderConfig.functions = kinds.EncoderFunctions(init_encoder, encode)
ConvDecoderConfig.functions = kinds.DecoderFunctions(
    init_decoder, init_cache, advance, prepare, convs2s_fast.precompute, convs2s_fast.for_one_hypothesis
)
