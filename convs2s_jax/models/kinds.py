"""The interface of encoders and decoders, and what passes between them.

A kind is a config class that names its pure functions in one record, `functions`. What depends only on the config is an
attribute of the config, with a default in the base class. `models.config` lists the kinds and registers those of other
packages.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.execution import ExecutionConfig, MatmulPrecision
from convs2s_jax.nn import struct
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.masking import mean, zero_padding
from convs2s_jax.nn.types import Array, Key


@struct.dataclass
class Memory:
    """The encoded source, which a decoder reads. Every leaf has the B sentences on axis 0.

    Attributes:
      keys: [B, S, E], compared with the queries of attention (z of the paper). If `prepared`, a tree of arrays that
        the decoder's layers read.
      values: [B, S, E], summed with the attention weights (z + e). If `prepared`, a tree of arrays too.
      mask: [B, S], True at real positions.
      summary: [B, E], for decoders that need an initial state. It is the mean of the keys, or the last states of a
        recurrent encoder.
      prepared: whether keys and values are mapped for the layers of a decoder; static.
    """

    keys: Any
    values: Any
    mask: Array
    summary: Array
    prepared: bool = struct.field(pytree_node=False, default=False)


@struct.dataclass
class Cache:
    """The state of a convolutional decoder after the target tokens read so far.

    Attributes:
      length: [N], real tokens read.
      histories: the last inputs of every convolution, [N, (K - 1) r, C] each.
    """

    length: Array
    histories: Any


class Options(NamedTuple):
    """Options of one call of an encoder or a decoder.

    Attributes:
      rate: dropout rate.
      key: random key for dropout; None for evaluation.
      execution: how the layers are executed; other kinds than ConvS2S use `remat` only.
      gradient_scale: factor on the gradient with respect to the memory's keys (section 3.4), for encoders.
    """

    rate: float = 0.0
    key: Key | None = None
    execution: ExecutionConfig = ExecutionConfig()
    gradient_scale: float = 1.0


class EncoderFunctions(NamedTuple):
    """The functions of a kind of encoder.

    Attributes:
      init: (key, config, vocabulary size V, embedding size E, dropout rate) -> parameters, with an attribute
        `embedding`, an `nn.embedding.Embedding`, unless there are none. Their scale compensates for the dropout.
      encode: (merged parameters, config, tokens [B, S] with the end symbol and PAD on either side, options) -> memory.
    """

    init: Callable[..., Any]
    encode: Callable[..., Memory]


class DecoderFunctions(NamedTuple):
    """The functions of a kind of decoder.

    Attributes:
      init: as in `EncoderFunctions`. The parameters have an attribute `output` too, the softmax layer
        (`nn.output.init`).
      init_cache: (parameters, config, prepared memory, N) -> an empty cache; axis 0 of every leaf has size N = B * W.
        The W hypotheses of a sentence are adjacent.
      advance: (merged parameters, config, prepared memory, cache, tokens [N, T], options) -> features [N, T, O] for the
        softmax layer; the weights [N, T, S] of each attention, in the order of the config's `attention_names`; the next
        cache. Tokens are the target shifted right by one, all of it in training, one token in decoding; PAD only on the
        right. Under `jit`, unused outputs are not computed.
      prepare: (parameters, config, memory) -> the memory for `init_cache` and `advance`, mapped once for all steps.
      precompute: (parameters, config) -> parameters with values computed from each word alone, for token-by-token
        decoding without dropout. Results are equal up to rounding. None if there is nothing to gain.
      for_one_hypothesis: precomputed parameters -> those for a search with one hypothesis per sentence.
    """

    init: Callable[..., Any]
    init_cache: Callable[..., Any]
    advance: Callable[..., tuple[Array, tuple[Array, ...], Any]]
    prepare: Callable[..., Memory] = lambda _params, _cfg, memory: memory
    precompute: Callable[..., Any] | None = None
    for_one_hypothesis: Callable[[Any], Any] = lambda params: params


class PartConfig:
    """Base class of the configs of encoders, decoders and features of a classifier.

    Attributes:
      kind: name of the kind.
    """

    kind: str

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence in tokens, including its end symbol."""
        raise NotImplementedError(f"{type(self).__name__} needs a field or property `max_length`")

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    def features_dim(self, dim: int, /) -> int:
        """Return the number of output features (O of a decoder) for an embedding size E = dim; the default is E."""
        return dim

    @property
    def reaches(self) -> list[int] | None:
        """Tokens that each layer sees around or before its own; None, the default, if it sees all."""
        return None


class EncoderConfig(PartConfig):
    """Base class of encoder configs.

    Attributes:
      functions: its functions.
      reads_source: whether the encoder reads a source. If not, and the decoder does not read the memory, the model is
        a language model.
    """

    functions: ClassVar[EncoderFunctions]
    reads_source: ClassVar[bool] = True


class DecoderConfig(PartConfig):
    """Base class of decoder configs.

    Attributes:
      functions: its functions.
      averages_attention: whether the attention of the decoder is the mean over its layers; if not, it is that of the
        last layer.
      tied_output: whether the softmax uses the embedding table.
    """

    functions: ClassVar[DecoderFunctions]
    averages_attention: ClassVar[bool] = True
    tied_output: bool = False

    @property
    def gradient_scale(self) -> float:
        """Factor on the gradient with respect to the keys of the memory."""
        return 1.0

    @property
    def reads_memory(self) -> bool:
        """Whether the decoder reads the memory."""
        return True

    @property
    def attention_names(self) -> tuple[str, ...]:
        """Names of the attentions that `advance` returns, in the same order, such as "layer 1"; empty by default."""
        return ()


class HasPositions:
    """Part of a config whose kind has a table of positions, `max_positions` rows of which two are reserved."""

    max_positions: int

    def __post_init__(self) -> None:
        rows = self.max_positions
        check(rows >= 4, f"max_positions is {rows}: two rows are reserved; use 4 or more")

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence in tokens, including its end symbol."""
        return self.max_positions - 2


def check_rate(name: str, rate: float) -> None:
    """Reject a dropout rate that is not a probability below 1."""
    check(0.0 <= rate < 1.0, f"{name} is {rate}: expected a probability below 1; use 0.0 to 0.9")


@record
class CommonConfig:
    """Config fields that all models share.

    Attributes:
      embedding_dim: embedding size E, the same on both sides.
      dropout: dropout rate, the same everywhere; of a classifier, on the features and inside an encoder.
      dtype: dtype of products and activations; parameters, softmax and norms stay in float32.
        On CPUs, bfloat16 gains little with jax 0.10. From 0.11 on it is almost twice as fast on processors with
        AMX, and faster on some others (docs/performance.md).
      matmul_precision: precision of products of float32 arrays. "highest" is float32 on every device. "default" keeps
        JAX's setting, which is TF32 on recent NVIDIA GPUs and bfloat16 on TPUs unless you change it. "high" is between
        them. On CPU all three are float32 (docs/reproducibility.md).
      execution: how the layers are executed. Results differ at most by rounding.
    """

    embedding_dim: int = 256
    dropout: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"
    matmul_precision: MatmulPrecision = "default"
    execution: ExecutionConfig = ExecutionConfig()

    def __post_init__(self) -> None:
        check(self.embedding_dim >= 1, f"embedding_dim is {self.embedding_dim}: use 1 or more")
        check_rate("dropout", self.dropout)


def memory_of(x: Array, mask: Array, options: Options) -> Memory:
    """Return the memory whose keys and values are both x [B, S, E], zero at padding, with their mean as summary."""
    z = scale_gradient(zero_padding(x, mask), options.gradient_scale)
    return Memory(keys=z, values=z, mask=mask, summary=mean(z, mask))


@record
class NoEncoderConfig(EncoderConfig):
    """No encoder, for language models (Dauphin et al. 2016).

    Attributes:
      kind: no encoder; the model is a language model.
    """

    reads_source: ClassVar[bool] = False

    kind: Literal["none"] = "none"

    @property
    def max_length(self) -> int:
        """The largest int32, since no source is read and any length is accepted."""
        return 2**31 - 1

    @property
    def reaches(self) -> list[int]:
        """Empty, since there are no layers."""
        return []


def no_memory(_params: tuple[()], _cfg: NoEncoderConfig, src: Array, _options: Options) -> Memory:
    """Return the same memory for every source [B, S]: one masked position [B, 1] without channels."""
    B = len(src)
    nothing = jnp.zeros((B, 1, 0), jnp.float32)
    return Memory(keys=nothing, values=nothing, mask=jnp.zeros((B, 1), bool), summary=nothing[:, 0])


NoEncoderConfig.functions = EncoderFunctions(lambda *_: (), no_memory)
