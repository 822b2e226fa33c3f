"""Sentence features from any encoder, whose outputs are pooled over time."""

from collections.abc import Callable
from typing import Any, Literal

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.protocols import FeaturesConfig
from convs2s_jax.models.table import ENCODERS, AnyEncoder
from convs2s_jax.nn import pooling
from convs2s_jax.nn.types import Array, Key


@record
class PooledConfig(FeaturesConfig):
    """An encoder whose outputs are pooled.

    Attributes:
      kind: an encoder with pooling.
      encoder: any kind of encoder.
      pooling: "max" or "mean" over the positions of the sentence.
    """

    kind: Literal["pooled"] = "pooled"
    encoder: AnyEncoder = ConvEncoderConfig()
    pooling: Literal["max", "mean"] = "max"

    def __post_init__(self) -> None:
        check(
            self.encoder.reads_source,
            f"encoder.kind is '{self.encoder.kind}', which does not read the input: use one that does, such as 'conv'",
        )

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, including the end symbol."""
        return self.encoder.max_length

    def check_dim(self, dim: int) -> None:
        """Reject an E that the encoder cannot use."""
        self.encoder.check_dim(dim)

    @property
    def normalised(self) -> bool:
        """Whether the encoder is trained with weight normalisation."""
        return self.encoder.normalised


def init(key: Key, cfg: PooledConfig, *, vocabulary: int, dim: int, rate: float) -> Any:
    """Initialise the parameters of the encoder: V = vocabulary, E = dim, dropout `rate`."""
    return ENCODERS[cfg.encoder.kind].init(key, cfg.encoder, vocabulary=vocabulary, dim=dim, rate=rate)


def extract(
    params: Any,
    cfg: PooledConfig,
    src: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Array:
    """Encode the sentence and pool the values of the memory over its positions, [B, E]; see `protocols.Features`."""
    encode = ENCODERS[cfg.encoder.kind].encode
    memory = encode(params, cfg.encoder, src, rate=rate, gradient_scale=1.0, key=key, execution=execution)
    return POOLINGS[cfg.pooling](memory.values, memory.mask)


POOLINGS: dict[str, Callable[[Array, Array], Array]] = {"max": pooling.maximum, "mean": pooling.mean}
