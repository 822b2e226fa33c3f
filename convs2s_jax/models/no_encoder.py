"""The encoder kind "none", which makes the decoder a language model (Dauphin et al. 2016)."""

from typing import ClassVar, Literal

import jax.numpy as jnp

from convs2s_jax.core.config import record
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import EncoderConfig
from convs2s_jax.nn.types import Array, Key


@record
class NoEncoderConfig(EncoderConfig):
    """No encoder, for language models.

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


def init(_key: Key, _cfg: NoEncoderConfig, /, **_: object) -> tuple[()]:
    """Return an empty tuple, since there are no parameters."""
    return ()


def encode(_params: tuple[()], _cfg: NoEncoderConfig, src: Array, /, **_: object) -> Memory:
    """Return the same memory for every source [B, S]: one masked position [B, 1] without channels."""
    B = len(src)
    nothing = jnp.zeros((B, 1, 0), jnp.float32)
    return Memory(keys=nothing, values=nothing, mask=jnp.zeros((B, 1), bool), summary=nothing[:, 0])
