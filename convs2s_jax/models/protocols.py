"""The interfaces of encoders, decoders and features: a kind is a config class and a module with these functions.

`models.table` lists the kinds, and there the type checker compares each module with its interface. What depends on a
config alone is an attribute of the config. It has a default in the base class, so most kinds need not set it. A
function that does not use some of the keywords accepts them as `**_`.

`PlainParamsT` are parameters as `init` returns them, `MemoryT` is a prepared memory.
"""

import itertools
from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeVar

from jax.typing import DTypeLike

from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import Array, Key


def fields_after(reaches: Iterable[int]) -> tuple[int, ...]:
    """The receptive field after each layer, in positions, from the further positions that each layer sees."""
    return tuple(itertools.accumulate(reaches, initial=1))[1:]


class EncoderConfig:
    """Base of the configs of encoders. Each has a `kind`, and `max_length`, the longest source in tokens.

    Attributes:
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      reads_source: whether the encoder reads a source; if not, and the decoder reads no memory, the model is a
        language model.
    """

    normalised: ClassVar[bool] = False
    reads_source: ClassVar[bool] = True

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    @property
    def receptive_fields(self) -> tuple[int, ...] | None:
        """Source tokens that a position sees after each layer; None, the default, where nothing limits them."""
        return None


class DecoderConfig:
    """Base of the configs of decoders. Each has a field `kind`, and `max_length`, the longest target in tokens.

    Attributes:
      normalised: whether the kernels of its `Affine` records are trained with weight normalisation.
      averages_attention: whether the attention of the decoder is the mean of its layers'; otherwise it is the last
        layer's.
    """

    normalised: ClassVar[bool] = False
    averages_attention: ClassVar[bool] = True

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    def features_dim(self, dim: int, /) -> int:
        """O, the number of output features, for an embedding size E = dim: E by default."""
        return dim

    @property
    def reads_memory(self) -> bool:
        """Whether the decoder reads the memory."""
        return True

    @property
    def attention_names(self) -> tuple[str, ...]:
        """A name for each attention that `advance` returns, in its order: "layer 1" and so on; the default has none."""
        return ()

    @property
    def returns_attention(self) -> bool:
        """Whether `advance` returns attention weights."""
        return len(self.attention_names) > 0

    @property
    def receptive_fields(self) -> tuple[int, ...] | None:
        """Target tokens that a position sees after each layer, itself counted; None, the default, for all before it."""
        return None

    @property
    def gradient_scale(self) -> float:
        """Factor on the gradient with respect to the keys of the memory."""
        return 1.0


class FeaturesConfig:
    """Base of the configs of features. Each has a field `kind`, and `max_length`, the longest text in tokens."""

    def check_dim(self, dim: int) -> None:
        """Reject an embedding size E = dim that this kind cannot use; the default accepts any."""

    def features_dim(self, dim: int, /) -> int:
        """F, the number of features, for an embedding size E = dim: E by default."""
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
        """Fresh parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""

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
        """Source tokens [B, S] to a memory; `gradient_scale` multiplies the gradient with respect to its keys."""


class DecoderSteps(Protocol[DecoderConfigT, PlainParamsT, MemoryT, CacheT]):
    """Decoding functions, shared by plain and precomputed parameters."""

    def prepare(self, params: PlainParamsT, cfg: DecoderConfigT, memory: Memory, /) -> MemoryT:
        """Prepare the memory for `init_cache` and `advance`, once for all steps.

        Every leaf of the result has the B sentences on axis 0; its attribute `mask` has shape [B, S].
        """

    def init_cache(self, params: PlainParamsT, cfg: DecoderConfigT, memory: MemoryT, rows: int, /) -> CacheT:
        """An empty cache; axis 0 of every leaf has size `rows`."""

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
        """Read tokens [N, T]: features [N, T, O], the weights [N, T, S] of each attention and the next cache.

        There is an attention for each of the config's `attention_names`. What nobody uses is not computed under `jit`.
        """

    def output_layer(self, params: PlainParamsT, dtype: DTypeLike, /) -> Affine:
        """The softmax layer: kernel [O, V] in the `dtype` of the features, bias [V] in float32 or better."""


class Decoder(
    DecoderSteps[DecoderConfigT, ParamsT, MemoryT, CacheT], Protocol[DecoderConfigT, ParamsT, MemoryT, CacheT]
):
    """The decoder interface."""

    def init(self, key: Key, cfg: DecoderConfigT, /, *, vocabulary: int, dim: int, rate: float) -> ParamsT:
        """Fresh parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""


class FastDecoder(
    DecoderSteps[DecoderConfigT, ParamsT, MemoryT, CacheT],
    Protocol[DecoderConfigT, PlainParamsT, ParamsT, MemoryT, CacheT],
):
    """A decoder for token-by-token inference, without dropout: `ParamsT` holds parameters and precomputed values."""

    def precompute(self, params: PlainParamsT, cfg: DecoderConfigT, /) -> ParamsT:
        """Precompute what all steps share; results are equal up to rounding."""

    def for_one_hypothesis(self, params: ParamsT, /) -> ParamsT:
        """The same for a search with one hypothesis of each sentence: `prepare` does what pays there."""


class Features(Protocol[FeaturesConfigT, ParamsT]):
    """The interface of features: a fixed-size representation of a text for a classifier."""

    def init(self, key: Key, cfg: FeaturesConfigT, /, *, vocabulary: int, dim: int, rate: float) -> ParamsT:
        """Fresh parameters: V = vocabulary, E = dim; the initial scale compensates for the dropout `rate`."""

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
        """Tokens [B, S] to features [B, F]; zero for a row of padding."""
