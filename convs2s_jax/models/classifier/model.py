"""Text classification (Kim 2014): sentence features, dropout, a softmax over labels, and the registry of features."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.checks import (
    check_config,
    check_labels,
    check_params,
    check_shapes,
    check_tokens,
    check_vocabulary,
)
from convs2s_jax.models.classifier import kim, pooled
from convs2s_jax.models.classifier.kim import KimConfig
from convs2s_jax.models.classifier.pooled import PooledConfig
from convs2s_jax.models.encoder_decoder import cast
from convs2s_jax.models.execution import ExecutionConfig, MatmulPrecision, matmul_precision_context
from convs2s_jax.models.protocols import Features, FeaturesConfigT, ParamsT, check_rate
from convs2s_jax.nn import affine, draws, struct, weight_norm
from convs2s_jax.nn.affine import Affine, add_bias
from convs2s_jax.nn.dropout import dropout, split_key, typed
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


def _kind(_config: type[FeaturesConfigT], functions: Features[FeaturesConfigT, ParamsT], /) -> Features[Any, Any]:
    """Return an entry of the registry. The type checker compares the functions with the interface."""
    return functions


FEATURES: dict[str, Features[Any, Any]] = {"kim": _kind(KimConfig, kim), "pooled": _kind(PooledConfig, pooled)}

AnyFeatures = KimConfig | PooledConfig
"""The config of any kind of features: a union discriminated by `kind`. The first member is the default."""


@record
class ClassifierConfig:
    """A text classifier.

    Attributes:
      kind: a text classifier.
      embedding_dim: embedding size E.
      dropout: dropout rate on the features before the softmax layer, and inside an encoder.
      dtype: dtype of products and activations; parameters, softmax and norms stay in float32.
      matmul_precision: precision of products of float32 arrays. "highest" is float32 on every device. "default" keeps
        JAX's setting, which is TF32 on recent NVIDIA GPUs and bfloat16 on TPUs unless you change it. "high" is between
        them. On CPU all three are float32 (docs/reproducibility.md).
      features: any kind of features.
      execution: how the layers are executed. Results differ at most by rounding.
    """

    kind: Literal["classifier"] = "classifier"
    embedding_dim: int = 300
    dropout: float = 0.5
    dtype: Literal["float32", "bfloat16"] = "float32"
    matmul_precision: MatmulPrecision = "default"
    features: AnyFeatures = KimConfig()
    execution: ExecutionConfig = ExecutionConfig()

    def __post_init__(self) -> None:
        check(self.embedding_dim >= 1, f"embedding_dim is {self.embedding_dim}: use 1 or more")
        check_rate("dropout", self.dropout)
        self.features.check_dim(self.embedding_dim)

    @property
    def max_source(self) -> int:
        """Maximum input length in tokens, including the end symbol."""
        return self.features.max_length

    @property
    def max_target(self) -> int:
        """Two, for a label and the end symbol."""
        return 2


@struct.dataclass
class ClassifierParams:
    """Parameters of a classifier.

    Attributes:
      features: parameters of the features.
      output: the softmax layer [F -> L].
    """

    features: Any
    output: Affine


def init(key: Key, cfg: ClassifierConfig, *, vocabulary: int, labels: int) -> ClassifierParams:
    """Initialise parameters with plain kernels (see `split`): V = vocabulary, L = labels.

    They are in float32, or in float64 under `jax_enable_x64`.
    """
    check_config(cfg, ClassifierConfig)
    check_vocabulary("vocabulary", vocabulary)
    check_labels(labels)
    return draws.initialise(_init, typed(key), cfg, vocabulary, labels)


def _init(key: Key, cfg: ClassifierConfig, vocabulary: int, labels: int) -> ClassifierParams:
    features_key, output_key = jax.random.split(key)
    kind = FEATURES[cfg.features.kind]
    return ClassifierParams(
        features=kind.init(features_key, cfg.features, vocabulary=vocabulary, dim=cfg.embedding_dim, rate=cfg.dropout),
        output=affine.init(output_key, cfg.features.features_dim(cfg.embedding_dim), labels, keep=1.0 - cfg.dropout),
    )


def split(params: ClassifierParams, cfg: ClassifierConfig) -> ClassifierParams:
    """Split kernels into direction and length for training (`nn.weight_norm`), if the features use it."""
    check_params(params, ClassifierParams)
    check_config(cfg, ClassifierConfig)
    return (
        dataclasses.replace(params, features=weight_norm.split(params.features)) if cfg.features.normalised else params
    )


def logits(params: ClassifierParams, cfg: ClassifierConfig, src: Array, *, key: Key | None = None) -> Array:
    """Unnormalised log-probabilities of the labels (equation 5):  y = W (z o r) + b,  z the features, r the dropout.

    (Kim rescales W to a norm of 3 after each update if it is larger. Here only gradient clipping limits it.)

    Args:
      params: merged kernels.
      cfg: classifier config.
      src: [B, S] tokens with the end symbol, PAD on either side.
      key: random key for dropout; None for evaluation.

    Returns:
      [B, L] in float32 or better.
    """
    check_params(params, ClassifierParams)
    check_config(cfg, ClassifierConfig)
    check_tokens("src", src)
    kind = FEATURES[cfg.features.kind]
    check_shapes("params.features", params.features, kind.init, cfg.features, cfg.embedding_dim)
    features_key, output_key = split_key(key, 2)
    params = cast(params, cfg)
    with matmul_precision_context(cfg.matmul_precision):
        z = kind.extract(
            params.features, cfg.features, src, rate=cfg.dropout, key=features_key, execution=cfg.execution
        )
        z = dropout(z, cfg.dropout, output_key)
        dtype = accumulation_dtype(z.dtype)
        y = jnp.einsum("BF,FL->BL", z, params.output.w, preferred_element_type=dtype)
    return add_bias(y, params.output.b)
