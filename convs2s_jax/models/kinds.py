"""The interface of encoders, decoders and features of a classifier, and what passes between them.

A kind is a config class that names its pure functions in one record, `functions`. What depends only on the config is an
attribute of the config, with a default in the base class, so most kinds need not set it. `models.model` lists the kinds
of encoders and decoders and registers those of other packages; `models.classifier` lists the kinds of features.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array, Key

ConfigT = TypeVar("ConfigT")
ParamsT = TypeVar("ParamsT")
CacheT = TypeVar("CacheT")


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
      histories: the last inputs of every convolution, [N, (K - 1) r, C] each: one for each layer in ConvS2S and
        LightConv.
    """

    length: Array
    histories: Any


class Options(NamedTuple):
    """Options of one call of an encoder or a decoder.

    Attributes:
      rate: dropout rate.
      key: random key for dropout; None for evaluation.
      execution: how the layers are executed.
      gradient_scale: factor on the gradient with respect to the memory's keys (section 3.4), for encoders.
    """

    rate: float = 0.0
    key: Key | None = None
    execution: ExecutionConfig = DEFAULT
    gradient_scale: float = 1.0


Init = Callable[[Key, ConfigT, int, int, float], ParamsT]
"""(key, config, vocabulary size V, embedding size E, dropout rate) -> parameters, with an attribute `embedding`, an
`nn.embedding.Embedding`, unless there are none. Their scale compensates for the dropout."""


class EncoderFunctions(NamedTuple, Generic[ConfigT, ParamsT]):
    """The functions of a kind of encoder.

    Attributes:
      init: see `Init`.
      encode: (merged parameters, config, tokens [B, S] with the end symbol and PAD on either side, options) -> memory.
    """

    init: Init[ConfigT, ParamsT]
    encode: Callable[[ParamsT, ConfigT, Array, Options], Memory]


def same_memory(_params: Any, _cfg: Any, memory: Memory) -> Memory:
    """Return the memory: the `prepare` of decoders that have nothing to prepare."""
    return memory


class DecoderFunctions(NamedTuple, Generic[ConfigT, ParamsT, CacheT]):
    """The functions of a kind of decoder.

    Attributes:
      init: see `Init`. The parameters have an attribute `output` too, the softmax layer (`nn.output.init`).
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

    init: Init[ConfigT, ParamsT]
    init_cache: Callable[[ParamsT, ConfigT, Memory, int], CacheT]
    advance: Callable[[ParamsT, ConfigT, Memory, CacheT, Array, Options], tuple[Array, tuple[Array, ...], CacheT]]
    prepare: Callable[[ParamsT, ConfigT, Memory], Memory] = same_memory
    precompute: Callable[[ParamsT, ConfigT], ParamsT] | None = None
    for_one_hypothesis: Callable[[ParamsT], ParamsT] = lambda params: params


class FeatureFunctions(NamedTuple, Generic[ConfigT, ParamsT]):
    """The functions of a kind of features, representations of a sentence of a fixed size.

    Attributes:
      init: see `Init`.
      extract: (merged parameters, config, tokens [B, S] as in an encoder, options) -> features [B, F]; zero for a row
        of PAD.
    """

    init: Init[ConfigT, ParamsT]
    extract: Callable[[ParamsT, ConfigT, Array, Options], Array]


class PartConfig:
    """Base class of the configs below.

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
    def receptive_fields(self) -> tuple[int, ...] | None:
        """Tokens that a position sees after each layer, itself included; None, the default, if it sees all."""
        return None


class EncoderConfig(PartConfig):
    """Base class of encoder configs.

    Attributes:
      functions: its functions.
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      reads_source: whether the encoder reads a source. If not, and the decoder does not read the memory, the model is
        a language model.
    """

    functions: ClassVar[EncoderFunctions[Any, Any]]
    normalised: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True


class DecoderConfig(PartConfig):
    """Base class of decoder configs.

    Attributes:
      functions: its functions.
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      averages_attention: whether the attention of the decoder is the mean over its layers; if not, it is that of the
        last layer.
      gradient_scale: factor on the gradient with respect to the keys of the memory.
      tied_output: whether the softmax uses the embedding table.
    """

    functions: ClassVar[DecoderFunctions[Any, Any, Any]]
    normalised: ClassVar[bool] = False
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

    @property
    def returns_attention(self) -> bool:
        """Whether `advance` returns attention weights."""
        return len(self.attention_names) > 0


class FeaturesConfig(PartConfig):
    """Base class of feature configs; `functions` are its functions."""

    functions: ClassVar[FeatureFunctions[Any, Any]]

    @property
    def normalised(self) -> bool:
        """Whether the kernels of its `Affine` records are trained with weight normalisation."""
        return False


def fields_after(reaches: Iterable[int]) -> tuple[int, ...]:
    """Return the receptive field after each layer, in positions, given how many positions each layer adds."""
    return tuple(itertools.accumulate(reaches, initial=1))[1:]


def check_rate(name: str, rate: float) -> None:
    """Reject a dropout rate that is not a probability below 1."""
    check(0.0 <= rate < 1.0, f"{name} is {rate}: expected a probability below 1; use 0.0 to 0.9")


def check_positions(rows: int) -> None:
    """Reject a position table without room for a word and its end symbol."""
    check(rows >= 4, f"max_positions is {rows}: two rows are reserved; use 4 or more")


def check_tied(out_dim: int, dim: int) -> None:
    """Reject a softmax that uses the embedding table, if O is not E = dim."""
    check(
        out_dim == dim,
        f"decoder.out_dim is {out_dim} with tied_output: the embedding table has {dim} columns; make the two equal",
    )


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
    def receptive_fields(self) -> tuple[int, ...]:
        """Empty, since there are no layers."""
        return ()


def no_parameters(_key: Key, _cfg: NoEncoderConfig, _vocabulary: int, _dim: int, _rate: float) -> tuple[()]:
    """Return an empty tuple, since there are no parameters."""
    return ()


def no_memory(_params: tuple[()], _cfg: NoEncoderConfig, src: Array, _options: Options) -> Memory:
    """Return the same memory for every source [B, S]: one masked position [B, 1] without channels."""
    B = len(src)
    nothing = jnp.zeros((B, 1, 0), jnp.float32)
    return Memory(keys=nothing, values=nothing, mask=jnp.zeros((B, 1), bool), summary=nothing[:, 0])


NoEncoderConfig.functions = EncoderFunctions(no_parameters, no_memory)
