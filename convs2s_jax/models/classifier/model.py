"""Text classification (Kim 2014): features of a text, dropout, and a softmax over labels; the table of features."""

import dataclasses
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.classifier import kim, pooled
from convs2s_jax.models.classifier.kim import KimConfig
from convs2s_jax.models.classifier.pooled import PooledConfig
from convs2s_jax.models.encoder_decoder import cast
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.models.protocols import Features
from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, bias
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.dropout import split as split_key
from convs2s_jax.nn.types import Array, Key, wide

FEATURES: dict[str, Features] = {"kim": kim.KIND, "pooled": pooled.KIND}

AnyFeatures = KimConfig | PooledConfig
"""The config of any kind of features, told apart by `kind`; the first member is the default."""


@record
class ClassifierConfig:
    """A classifier of texts.

    embedding_dim: E; dropout: of the features before the softmax layer, and within an encoder; dtype: as in
    `encoder_decoder.ModelConfig`; features: a record told apart by its `kind`; execution: of the layers, without
    influence on results.
    """

    kind: Literal["classifier"] = "classifier"
    embedding_dim: int = 300
    dropout: float = 0.5
    dtype: Literal["float32", "bfloat16"] = "float32"
    features: AnyFeatures = KimConfig()
    execution: ExecutionConfig = ExecutionConfig()

    def __post_init__(self) -> None:
        check(self.embedding_dim >= 1, f"embedding_dim is {self.embedding_dim}: use 1 or more")
        check(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}: a probability below 1; use 0.0 to 0.9")
        self.features.check_dim(self.embedding_dim)

    @property
    def max_source(self) -> int:
        """Longest text in tokens, its end symbol counted."""
        return self.features.max_length

    @property
    def max_target(self) -> int:
        """A label, and the end symbol that stands behind it as behind every target."""
        return 2


@flax.struct.dataclass
class ClassifierParams:
    """Of the features, and the softmax layer [F, L]."""

    features: Any
    output: Affine


def init(key: Key, cfg: ClassifierConfig, *, vocabulary: int, labels: int) -> ClassifierParams:
    """Fresh parameters in float32, kernels whole (see `split` for training): V = vocabulary, L = labels."""
    features_key, output_key = jax.random.split(key)
    kind = FEATURES[cfg.features.kind]
    size = kind.size(cfg.features, cfg.embedding_dim)
    return ClassifierParams(
        features=kind.init(features_key, cfg.features, vocabulary=vocabulary, dim=cfg.embedding_dim, rate=cfg.dropout),
        output=affine.init(output_key, size, labels, keep=1.0 - cfg.dropout),
    )


def split(params: ClassifierParams, cfg: ClassifierConfig) -> ClassifierParams:
    """What is trained: kernels as direction and length (`nn.weight_norm`) where the features have them so."""
    return dataclasses.replace(params, features=FEATURES[cfg.features.kind].split(params.features, cfg.features))


def logits(params: ClassifierParams, cfg: ClassifierConfig, src: Array, *, key: Key | None = None) -> Array:
    """Unnormalised log-probabilities of the labels (section 2):  y = W (z o r) + b,  z the features, r the dropout.

    (Kim divides W by a length beyond 3 after each update; here nothing bounds it but the clipping of gradients.)

    Args:
      params: merged kernels.
      cfg: the model.
      src: [B, S] tokens with the end symbol, PAD on either side.
      key: for dropout; None evaluates.

    Returns:
      [B, L] in float32 or better.
    """
    features_key, output_key = split_key(key, 2)
    params = cast(params, cfg)
    z = FEATURES[cfg.features.kind].extract(
        params.features, cfg.features, src, rate=cfg.dropout, key=features_key, execution=cfg.execution
    )
    z = dropout(z, cfg.dropout, output_key)
    dtype = wide(z.dtype)
    y = jnp.einsum("BF,FL->BL", z, params.output.w, preferred_element_type=dtype)
    return y + bias(params.output.b.astype(dtype), 2)
