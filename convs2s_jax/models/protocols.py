"""Interfaces of encoders, decoders and features. A kind is a config class and a module with these functions.

`models.table` lists the kinds, and the type checker compares each module with its interface there. What depends only on
the config is an attribute of the config. It has a default in the base class, so most kinds need not set it. A function
that does not use some of the keywords accepts them as `**_`.

`PlainParamsT` are parameters as `init` returns them, `MemoryT` is a prepared memory.
"""

import itertools
from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeVar

from jax.typing import DTypeLike

from convs2s_jax.core.config import check
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import Array, Key


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


class EncoderConfig:
    """Base class of encoder configs. Each has a `kind`, and `max_length`, the maximum source length in tokens.

    Attributes:
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      reads_source: whether the encoder reads a source. If not, and the decoder does not read the memory, the model is
        a language model.
    """

    normalised: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    @property
    def receptive_fields(self) -> tuple[int, ...] | None:
        """Source tokens that a position sees after each layer; None, the default, if it sees all."""
        return None


class DecoderConfig:
    """Base class of decoder configs. Each has a field `kind`, and `max_length`, the maximum target length in tokens.

    Attributes:
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      averages_attention: whether the attention of the decoder is the mean over its layers; if not, it is that of the
        last layer.
    """

    normalised: ClassVar[bool] = False
    averages_attention: ClassVar[bool] = True

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    def features_dim(self, dim: int, /) -> int:
        """Return O, the number of output features, for an embedding size E = dim; the default is E."""
        return dim

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

    @property
    def receptive_fields(self) -> tuple[int, ...] | None:
        """Target tokens that a position sees after each layer, itself included; None (default) for all so far."""
        return None

    @property
    def gradient_scale(self) -> float:
        """Factor on the gradient with respect to the keys of the memory."""
        return 1.0


class FeaturesConfig:
    """Base class of feature configs. Each has a field `kind`, and `max_length`, the maximum input length in tokens."""

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    def features_dim(self, dim: int, /) -> int:
        """Return F, the number of features, for an embedding size E = dim; the default is E."""
        return dim

    @property
    def normalised(self) -> bool:
        """Whether the kernels of its `Affine` records are trained with weight normalisation."""
        return False


EncoderConfigT = TypeVar("EncoderConfigT", bound=EncoderConfig, contravariant=True)
DecoderConfigT = TypeVar("DecoderConfigT", bound=DecoderConfig, contravariant=True)
FeaturesConfigT = TypeVar("FeaturesConfigT", bound=FeaturesConfig, contravariant=True)
ParamsT = TypeVar("ParamsT")
PlainParamsT = TypeVar("PlainParamsT", contravariant=True)
MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT")


class Encoder(Protocol[EncoderConfigT, ParamsT]):
    """The encoder interface."""

    def init(self, key: Key, cfg: EncoderConfigT, /, *, vocabulary: int, dim: int, rate: float) -> ParamsT:
        """Initialise parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""

    def encode(
        self,
        params: ParamsT,
        cfg: EncoderConfigT,
        src: Array,
        /,
        *,
        rate: float,
        gradient_scale: float,
        key: Key | None = None,
        execution: ExecutionConfig = DEFAULT,
    ) -> Memory:
        """Encode source tokens into a memory.

        Args:
          params: merged kernels.
          cfg: encoder config.
          src: [B, S] tokens with the end symbol, PAD on either side.
          rate: dropout rate.
          gradient_scale: factor on the gradient with respect to the memory's keys (section 3.4).
          key: random key for dropout; None for evaluation.
          execution: how the layers are executed.
        """


class DecoderSteps(Protocol[DecoderConfigT, PlainParamsT, MemoryT, CacheT]):
    """Decoding functions, shared by plain and precomputed parameters."""

    def prepare(self, params: PlainParamsT, cfg: DecoderConfigT, memory: Memory, /) -> MemoryT:
        """Prepare the memory for `init_cache` and `advance`, once for all steps.

        Every leaf of the result has the B sentences on axis 0; its attribute `mask` has shape [B, S].
        """

    def init_cache(self, params: PlainParamsT, cfg: DecoderConfigT, memory: MemoryT, rows: int, /) -> CacheT:
        """Create an empty cache; axis 0 of every leaf has size `rows`."""

    def advance(
        self,
        params: PlainParamsT,
        cfg: DecoderConfigT,
        memory: MemoryT,
        cache: CacheT,
        tokens: Array,
        /,
        *,
        rate: float,
        key: Key | None = None,
        execution: ExecutionConfig = DEFAULT,
    ) -> tuple[Array, tuple[Array, ...], CacheT]:
        """Read any number of target tokens: all of them in training, one in decoding.

        Args:
          params: merged kernels.
          cfg: decoder config.
          memory: memory of B sentences, from `prepare`.
          cache: cache of N = B * W rows, the W hypotheses of a sentence adjacent.
          tokens: [N, T], the target shifted right by one; PAD only on the right.
          rate: dropout rate.
          key: random key for dropout; None for evaluation.
          execution: how the layers are executed.

        Returns:
          Features [N, T, O] for the softmax layer; the weights [N, T, S] of each attention, in the order of the
          config's `attention_names`; the next cache. Under `jit`, unused outputs are not computed.
        """

    def output_layer(self, params: PlainParamsT, dtype: DTypeLike, /) -> Affine:
        """Return the softmax layer: kernel [O, V] in the `dtype` of the features, bias [V] in float32 or better."""


class Decoder(
    DecoderSteps[DecoderConfigT, ParamsT, MemoryT, CacheT], Protocol[DecoderConfigT, ParamsT, MemoryT, CacheT]
):
    """The decoder interface."""

    def init(self, key: Key, cfg: DecoderConfigT, /, *, vocabulary: int, dim: int, rate: float) -> ParamsT:
        """Initialise parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""


class FastDecoder(
    DecoderSteps[DecoderConfigT, ParamsT, MemoryT, CacheT],
    Protocol[DecoderConfigT, PlainParamsT, ParamsT, MemoryT, CacheT],
):
    """A decoder for token-by-token inference, without dropout. `ParamsT` contains parameters and precomputed values."""

    def precompute(self, params: PlainParamsT, cfg: DecoderConfigT, /) -> ParamsT:
        """Precompute what all steps share; results are equal up to rounding."""

    def for_one_hypothesis(self, params: ParamsT, /) -> ParamsT:
        """Adapt the parameters to a search with one hypothesis per sentence, where less preparation pays off."""


class Features(Protocol[FeaturesConfigT, ParamsT]):
    """The interface of features: a fixed-size representation of a sentence for a classifier."""

    def init(self, key: Key, cfg: FeaturesConfigT, /, *, vocabulary: int, dim: int, rate: float) -> ParamsT:
        """Initialise parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""

    def extract(
        self,
        params: ParamsT,
        cfg: FeaturesConfigT,
        src: Array,
        /,
        *,
        rate: float,
        key: Key | None = None,
        execution: ExecutionConfig = DEFAULT,
    ) -> Array:
        """Compute features [B, F] from tokens [B, S] with the end symbol, PAD on either side; zero for a row of PAD."""
