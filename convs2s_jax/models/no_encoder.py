"""No encoder: the decoder is a language model, whose words depend on the words before them (Dauphin et al. 2016)."""

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
      kind: no encoder.
    """

    reads_source: ClassVar[bool] = False

    kind: Literal["none"] = "none"

    @property
    def max_length(self) -> int:
        """No source is read, so any length will do."""
        return 2**31 - 1

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """There is no layer."""
        return ()


def init(_key: Key, _cfg: NoEncoderConfig, /, **_: object) -> tuple[()]:
    """No parameters."""
    return ()


def encode(_params: tuple[()], _cfg: NoEncoderConfig, src: Array, /, **_: object) -> Memory:
    """The same memory for every source [B, S]: one position [B, 1] without channels, which is masked."""
    B = len(src)
    nothing = jnp.zeros((B, 1, 0), jnp.float32)
    return Memory(keys=nothing, values=nothing, mask=jnp.zeros((B, 1), bool), summary=nothing[:, 0])
