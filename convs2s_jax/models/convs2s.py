"""ConvS2S (Gehring et al. 2017): stacks of convolutions with gated linear units, and multi-step attention."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import convs2s_fast
from convs2s_jax.models.convolutions import ConvolutionConfig, DenseConfig
from convs2s_jax.models.convs2s_fast import ProjectedSource, Tables, Words
from convs2s_jax.models.execution import ExecutionConfig, mark_product
from convs2s_jax.models.kinds import (
    Cache,
    DecoderConfig,
    DecoderFunctions,
    EncoderConfig,
    EncoderFunctions,
    Memory,
    Options,
    check_positions,
    check_tied,
    fields_after,
)
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

T = TypeVar("T")
SizeT = TypeVar("SizeT")


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


class LayerChannels(NamedTuple):
    """Channel counts around one layer.

    Attributes:
      inputs: channels of its input.
      residual: channels where its residual connection starts; None if it has none.
    """

    inputs: int
    residual: int | None


def layer_channels(layers: Sequence[ConvLayer]) -> list[LayerChannels]:
    """Return the input and residual channels of each layer. The first input has the channels of the first layer."""
    outputs = [layers[0].channels]
    result = []
    for layer in layers:
        result.append(LayerChannels(outputs[-1], outputs[-layer.skip] if layer.skip else None))
        outputs.append(layer.channels)
    return result


class ConvStack:
    """What the configs of encoder and decoder share: a stack of convolutions over embeddings with positions."""

    normalised: ClassVar[bool] = True
    layers: tuple[ConvLayer, ...]
    convolution: ConvolutionConfig
    max_positions: int

    def __post_init__(self) -> None:
        layers = self.layers
        check(len(layers) > 0, "layers is empty: a convolutional stack has at least one layer, such as [(256, 3)]")
        for i, layer in enumerate(layers):
            rule = f"layers[{i}].skip is {layer.skip}: only {i + 1} earlier outputs exist there; use at most {i + 1}"
            check(layer.skip <= i + 1, rule)
        for size in layer_channels(layers):
            self.convolution.check_inputs(size.inputs)
        check_positions(self.max_positions)

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence, end symbol included. Two rows of the position table are reserved."""
        return self.max_positions - 2

    @property
    def reaches(self) -> list[int]:
        """Number of inputs (K - 1) r that an output of each layer sees besides its own, width K, dilation r."""
        return [(layer.width - 1) * self.convolution.at(i).dilation for i, layer in enumerate(self.layers)]

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """1 + (K - 1) r, summed over the layers up to each (section 3.2)."""
        return fields_after(self.reaches)


@record
class ConvEncoderConfig(ConvStack, EncoderConfig):
    """Convolutional encoder.

    Attributes:
      layers: from bottom to top, each (channels, width) or (channels, width, skip).
      convolution: the kind of convolution of all layers, dense, separable, lightweight or dynamic.
      positions: whether position embeddings are added (table 4 of the paper).
      max_positions: rows of the position table, two more than the longest source including its end symbol.
    """

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 4
    convolution: ConvolutionConfig = DenseConfig()
    positions: bool = True
    max_positions: int = 1024


@record
class ConvDecoderConfig(ConvStack, DecoderConfig):
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

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 3
    convolution: ConvolutionConfig = DenseConfig()
    attention_layers: tuple[int, ...] | None = None
    out_dim: int = 256
    tied_output: bool = False
    positions: bool = True
    max_positions: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")
        numbers = sorted(self.attention_layers or ())
        for number in numbers:
            check(
                1 <= number <= len(self.layers),
                f"attention_layers contains {number}: layers are numbered from 1 to {len(self.layers)}",
            )
        twice = [a for a, b in itertools.pairwise(numbers) if a == b]
        check(not twice, f"attention_layers contains {twice[0] if twice else 0} twice: list each layer once")

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
      attention: parameters of the attention; None if the layer does not attend, as in an encoder.
    """

    conv: Any
    projection: Affine | None
    attention: MultiStepAttention | None = None


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
    blocks: tuple[ConvBlock, ...]
    map_out: Affine


@struct.dataclass
class ConvDecoderParams(ConvEncoderParams):
    """Parameters of the decoder: those of an encoder, whose last map is to the O features, and the softmax layer.

    Attributes:
      output: the softmax layer [O -> V], or only its bias [V] if the kernel is the embedding table.
      tables: of the first layer, from `precompute`; None otherwise, and if its convolution depends on its input
        (dynamic), has a dilation, or would have tables that are too large.
      maps_source: whether `prepare` maps the source for each layer, as after `precompute`; static.
    """

    output: Affine | Array
    tables: Tables | None = None
    maps_source: bool = struct.field(pytree_node=False, default=False)


def init_layers(
    keys: Key, layers: Sequence[ConvLayer], keep: float, convolution: ConvolutionConfig
) -> list[tuple[Any, Affine | None]]:
    """Initialise the convolution of each layer, from C to 2D channels, and its residual's projection [C, D] or None."""

    def init(key: Key, described: tuple[ConvLayer, LayerChannels, ConvolutionConfig]) -> tuple[Any, Affine | None]:
        layer, size, own = described
        conv_key, projection_key = jax.random.split(key)
        conv = own.functions.init(conv_key, own, layer.width, size.inputs, 2 * layer.channels, keep)
        if size.residual in (None, layer.channels):
            return conv, None
        return conv, affine.init(projection_key, size.residual, layer.channels)

    own = [convolution.at(i) for i in range(len(layers))]
    return init_each(init, keys, list(zip(layers, layer_channels(layers), own, strict=True)))


def init_each(init: Callable[[Key, SizeT], T], keys: Key, sizes: Sequence[SizeT]) -> list[T]:
    """Compute [init(key, size) for key, size in zip(keys, sizes)], with one loop over all layers of equal size.

    The program contains the code of the random number generator once for each size, not once for each layer. That code
    is most of what is compiled. Equal sizes mean equal parameter shapes.
    """
    found: dict[int, T] = {}
    for size in dict.fromkeys(sizes):
        places = [i for i, other in enumerate(sizes) if other == size]

        def of_size(key: Key, size: SizeT = size) -> T:
            return init(key, size)

        stacks = jax.lax.map(of_size, keys[np.array(places)])
        found |= {place: jax.tree.map(itemgetter(i), stacks) for i, place in enumerate(places)}
    return [found[i] for i in range(len(sizes))]


def init_encoder(key: Key, cfg: ConvEncoderConfig, vocabulary: int, dim: int, rate: float) -> ConvEncoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, len(cfg.layers) + 3)
    keep = 1.0 - rate
    return ConvEncoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(ConvBlock(*made) for made in init_layers(keys[3:], cfg.layers, keep, cfg.convolution)),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, dim),
    )


def init_decoder(key: Key, cfg: ConvDecoderConfig, vocabulary: int, dim: int, rate: float) -> ConvDecoderParams:
    """Initialise parameters (section 3.5) for V = vocabulary, E = dim and dropout `rate`."""
    keys = jax.random.split(key, 2 * len(cfg.layers) + 4)
    keep = 1.0 - rate
    convolutions = init_layers(keys[4::2], cfg.layers, keep, cfg.convolution)
    channels = [layer.channels if cfg.attends(i) else None for i, layer in enumerate(cfg.layers)]
    attentions = init_each(
        lambda key, size: None if size is None else attention.init(key, size, dim), keys[5::2], channels
    )
    return ConvDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(ConvBlock(*made, attends) for made, attends in zip(convolutions, attentions, strict=True)),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, cfg.out_dim),
        output=output.init(keys[3], cfg.out_dim, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def encode(params: ConvEncoderParams, cfg: ConvEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens [B, S] into a memory with keys z and values (z + e) * sqrt(0.5).

    Padding is set to zero before each convolution, so it has the same effect as the sentence boundary. The residual is
    the unmasked input (fairseq). Dropout is applied to the embeddings and to the input of each convolution.
    """
    mask, rate = src != PAD, options.rate
    keys = split_key(options.key, len(cfg.layers) + 1)
    e = replicate_channels(embed(params.embedding, src).astype(params.map_in.w.dtype))
    e = dropout(e, rate, keys[0])

    def apply(layer: ConvLayer, item: Any, outputs: Sequence[Array]) -> tuple[Array, None]:
        block, own, k = item
        r = residual(outputs, layer, block.projection)
        x = all_gather_channels(dropout(zero_padding(outputs[-1], mask), rate, k))
        convolve = own.functions.convolve(block.conv, own, x, options.execution.form)
        y = convolution.centred(convolve, x, (layer.width - 1) * own.dilation)
        return add_residual(gated(mark_conv_output(y, options.execution.form)), r), None

    items = [
        (block, cfg.convolution.at(i), k) for i, (block, k) in enumerate(zip(params.blocks, keys[1:], strict=True))
    ]
    x, _ = apply_layers(apply, cfg.layers, items, shard_channels(linear(params.map_in, e)), options.execution)
    z = scale_gradient(zero_padding(replicate_channels(linear(params.map_out, x)), mask), options.gradient_scale)
    return Memory(keys=z, values=(z + e) * SQRT_HALF, mask=mask, summary=mean(z, mask))


def precompute(params: ConvDecoderParams, cfg: ConvDecoderConfig) -> ConvDecoderParams:
    """Build the tables of the first layer, and let `prepare` map the source for the attention of each layer."""
    conv = cfg.convolution.functions.dense(params.blocks[0].conv, cfg.convolution.at(0))
    tables = None if conv is None else convs2s_fast.init_tables(params.embedding, params.map_in, conv)
    return dataclasses.replace(params, tables=tables, maps_source=True)


def for_one_hypothesis(params: ConvDecoderParams) -> ConvDecoderParams:
    """Adapt precomputed parameters to a search with one hypothesis per sentence, which does not map the source.

    A target is about as long as its source, so the maps cost the same on either side, and without mapping, all layers
    read the same keys and values.
    """
    return dataclasses.replace(params, maps_source=False)


def prepare(params: ConvDecoderParams, _cfg: ConvDecoderConfig, memory: Memory) -> Memory:
    """Map the source for the attention of each layer, once for all steps and hypotheses, if `maps_source`.

    The keys of the result are z of `convs2s_fast.scaled_keys`. Its values are the `ProjectedSource` of each layer, None
    for layers without attention.
    """
    maps = [block.attention for block in params.blocks]
    first = next((m for m in maps if m is not None), None)
    if first is None or not params.maps_source:
        return memory
    z = convs2s_fast.scaled_keys(first, memory.keys)
    sources = tuple(None if m is None else convs2s_fast.project_source(m, z, memory.values) for m in maps)
    return dataclasses.replace(memory, keys=z, values=sources, prepared=True)


def init_cache(params: ConvDecoderParams, cfg: ConvDecoderConfig, _memory: Memory, rows: int) -> Cache:
    """Create the cache before the first token, with zero histories, so that the first steps see zeros on the left.

    A first layer with tables has the words of its history instead.
    """
    dtype = params.map_in.w.dtype
    sizes = zip(cfg.reaches, layer_channels(cfg.layers), strict=True)
    histories: list[Any] = [jnp.zeros((rows, reach, size.inputs), dtype) for reach, size in sizes]
    if params.tables is not None:
        histories[0] = convs2s_fast.no_words(params.tables, rows)
    return Cache(length=jnp.zeros(rows, jnp.int32), histories=tuple(histories))


def advance(
    params: ConvDecoderParams, cfg: ConvDecoderConfig, memory: Memory, cache: Cache, tokens: Array, options: Options
) -> tuple[Array, tuple[Array, ...], Cache]:
    """Read target tokens [N, T]; return features [N, T, O], the attention of each layer that attends and the cache.

    Dropout is applied to the embeddings, the input of each convolution and the features. A single token is processed
    without a scan over layers.
    """
    keys, rate, tables = split_key(options.key, len(cfg.layers) + 2), options.rate, params.tables
    g = replicate_channels(embed(params.embedding, tokens, cache.length).astype(params.map_in.w.dtype))
    g = dropout(g, rate, keys[0])
    words = Words(tokens=tokens, places=position_rows(tokens, cache.length))

    def attend(maps: MultiStepAttention, h: Array, source: ProjectedSource | None) -> tuple[Array, Array]:
        if source is None:
            return attention.attend(maps, h, g, memory.keys, memory.values, memory.mask)
        return convs2s_fast.attend_projected(maps, h, g, memory.keys, source, memory.mask)

    def apply(layer: ConvLayer, item: Any, outputs: Sequence[Array]) -> tuple[Array, Any]:
        block, own, history, source, k = item
        if tables is not None and isinstance(history, Words):
            y, history = convs2s_fast.convolve(tables, history, words)
        else:
            x = all_gather_channels(dropout(outputs[-1], rate, k))
            y, history = convolution.causal(own.functions.convolve(block.conv, own, x, form), history, x)
        h, a = gated(mark_conv_output(y, form)), None
        if block.attention is not None:
            h, a = attend(block.attention, h, source)
        return add_residual(h, residual(outputs, layer, block.projection)), (history, a)

    own, form = [cfg.convolution.at(i) for i in range(len(cfg.layers))], options.execution.form
    sources = memory.values if memory.prepared else [None] * len(cfg.layers)
    items = list(zip(params.blocks, own, cache.histories, sources, keys[2:], strict=True))
    x = linear(params.map_in, g) if tables is None else convs2s_fast.read(tables, words).astype(g.dtype)
    x, made = apply_layers(apply, cfg.layers, items, shard_channels(x), options.execution)
    features = dropout(replicate_channels(linear(params.map_out, x)), rate, keys[1])
    after = Cache(length=length_after(cache.length, tokens), histories=tuple(history for history, _ in made))
    return features, tuple(a for _, a in made if a is not None), after


def residual(outputs: Sequence[Array], layer: ConvLayer, projection: Affine | None) -> Array | None:
    """Return the input of a layer's residual connection, projected if channels change (section 3.2), or None."""
    if layer.skip == 0:
        return None
    r = outputs[-layer.skip]
    return r if projection is None else linear(projection, r)


def mark_conv_output(y: Array, form: DenseForm) -> Array:
    """Mark y, the output of a convolution, as that of products if it is (`execution.mark_product`)."""
    return mark_product(y) if form == "products" else y


def gated(y: Array) -> Array:
    """Apply the GLU to a convolution's output: [B, T, 2D] to [B, T, D]."""
    return shard_channels(glu(y))


def add_residual(x: Array, r: Array | None) -> Array:
    """Return (x + r) * sqrt(0.5), which preserves the variance (section 3.4), or x if there is no residual."""
    return x if r is None else shard_channels((x + r) * SQRT_HALF)


Layer = Callable[[ConvLayer, Tree, Sequence[Array]], tuple[Array, Tree]]
"""One layer: (its entry in the list, its item, the outputs of the layers before) -> its output, and a tree of further
results. The item contains its parameters and further inputs."""


def apply_layers(
    layer: Layer, layers: Sequence[ConvLayer], items: Sequence[Tree], x: Array, cfg: ExecutionConfig
) -> tuple[Array, list[Tree]]:
    """Apply all layers to x.

    Args:
      layer: the function of one layer.
      layers: the list.
      items: the second argument of `layer`, for each layer.
      x: [B, T, C], input of the first layer.
      cfg: whether to recompute activations.

    Returns:
      The output of the last layer, and the further results of each layer.
    """
    outputs, made = [x], list[Tree]()
    for described, item in zip(layers, items, strict=True):
        x, further = cfg.with_remat(partial(layer, described))(item, outputs)
        if x.shape[1] > 1:  # later layers read x instead of recomputing it; a single position is cheap
            x = jax.lax.optimization_barrier(x)
        outputs.append(x)
        made.append(further)
    return x, made


ConvEncoderConfig.functions = EncoderFunctions(init_encoder, encode)
ConvDecoderConfig.functions = DecoderFunctions(
    init_decoder, init_cache, advance, prepare, precompute=precompute, for_one_hypothesis=for_one_hypothesis
)
