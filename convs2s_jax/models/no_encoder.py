"""No encoder: what follows depends on what came before alone, a language model (Dauphin et al. 2016)."""

from typing import Literal

import jax.numpy as jnp

from convs2s_jax.core.config import record
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import Encoder
from convs2s_jax.nn.types import Array, Key


@record
class NoEncoderConfig:
    """Nothing can be chosen."""

    kind: Literal["none"] = "none"

    @property
    def max_length(self) -> int:
        """Sources of any length are not read."""
        return 2**31 - 1

    def check_dim(self, dim: int) -> None:
        """Any E will do."""


def init(key: Key, cfg: NoEncoderConfig, *, vocabulary: int, dim: int, rate: float) -> tuple[()]:
    """No parameters."""
    del key, cfg, vocabulary, dim, rate
    return ()


def encode(
    params: tuple[()],
    cfg: NoEncoderConfig,
    src: Array,
    *,
    rate: float,
    gradient_scale: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> Memory:
    """The same memory for every source [B, S]: one position [B, 1] without channels, which is masked."""
    del params, cfg, rate, gradient_scale, key, execution
    B = len(src)
    nothing = jnp.zeros((B, 1, 0), jnp.float32)
    return Memory(keys=nothing, values=nothing, mask=jnp.zeros((B, 1), bool), summary=nothing[:, 0])


KIND = Encoder(config=NoEncoderConfig, init=init, encode=encode, normalised=False, reads=False)
