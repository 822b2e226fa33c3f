"""Sentence features from convolutions of several widths with max pooling over time (Kim 2014, section 2)."""

from typing import Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.protocols import FeaturesConfig
from convs2s_jax.nn import convolution, embedding, pooling, struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.types import Array, Key


@record
class KimConfig(FeaturesConfig):
    """Kim's features. The defaults are those of the paper (section 3.1).

    Attributes:
      kind: Kim's features.
      widths: kernel width K of each bank of convolutions.
      maps: number of channels D of each bank.
      max_length: maximum input length in tokens, including the end symbol (the model itself has no limit).
    """

    kind: Literal["kim"] = "kim"
    widths: tuple[int, ...] = (3, 4, 5)
    maps: int = 100
    max_length: int = 4096

    def __post_init__(self) -> None:
        check(len(self.widths) > 0, "widths is empty: use at least one width, as in (3, 4, 5)")
        for i, width in enumerate(self.widths):
            check(width >= 1, f"widths[{i}] is {width}: a convolution sees at least one position; use 1 or more")
        check(self.maps >= 1, f"maps is {self.maps}: a convolution has at least one channel; use 1 or more")
        rule = f"max_length is {self.max_length}: a word and its end symbol need two; use 2 or more"
        check(self.max_length >= 2, rule)

    def features_dim(self, _dim: int, /) -> int:
        """Return F, the number of feature maps over all widths."""
        return self.maps * len(self.widths)


@struct.dataclass
class Bank:
    """The convolutions of one width.

    Attributes:
      conv: [K, E, D].
    """

    conv: Affine


@struct.dataclass
class KimParams:
    """Parameters of Kim's features.

    Attributes:
      embedding: token embedding, without positions.
      banks: one for each width.
    """

    embedding: Embedding
    banks: tuple[Bank, ...]


def init(key: Key, cfg: KimConfig, *, vocabulary: int, dim: int, **_: object) -> KimParams:
    """Initialise parameters: V = vocabulary, E = dim, kernels ~ N(0, sqrt(2 / (K E))), the He initialisation for ReLU.

    Dropout does not affect the initial scale, because it is applied after the features.
    """
    keys = jax.random.split(key, len(cfg.widths) + 1)
    return KimParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        banks=tuple(
            Bank(convolution.init(k, width, dim, cfg.maps, keep=0.5))
            for k, width in zip(keys[1:], cfg.widths, strict=True)
        ),
    )


def extract(
    params: KimParams, _cfg: KimConfig, src: Array, /, *, execution: ExecutionConfig = DEFAULT, **_: object
) -> Array:
    """Compute one number per feature map (equations 2 and 3):  c_t = relu(w . x_{t:t+K-1} + b),  c = max_t c_t.

    Only windows inside the sentence count. A sentence shorter than K has one window, which starts at its first token
    and is padded with zeros. (Kim's code puts K_max - 1 zeros before and after every sentence, so its windows reach
    beyond it; the paper pads only sentences that are too short.)

    Args:
      params: merged kernels.
      src: [B, S] tokens with the end symbol, which counts as a token; PAD on either side.
      execution: selects the form of the convolutions.

    Returns:
      [B, F]: the maps of the first width, then those of the second, and so on.
    """
    mask = src != PAD
    x = zero_padding(embed(params.embedding, src), mask)
    real = mask.astype(jnp.int32)
    begun, left = jnp.cumsum(real, axis=1), jnp.cumsum(real[:, ::-1], axis=1)[:, ::-1]

    def pooled(bank: Bank) -> Array:
        width = bank.conv.w.shape[0]
        c = jax.nn.relu(
            convolution.dense(bank.conv, jnp.pad(x, ((0, 0), (0, width - 1), (0, 0))), execution.form(False))
        )
        inside = mask & ((left >= width) | (begun == 1))
        return pooling.maximum(c, inside)

    return jnp.concatenate([pooled(bank) for bank in params.banks], axis=-1)
