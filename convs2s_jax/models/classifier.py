"""Text classification (Kim 2014): features of a sentence, dropout, and a softmax over labels.

There are two kinds of features: convolutions of several widths with max pooling over time (Kim 2014, section 2), and
any encoder, whose outputs are pooled over time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models.checks import check_config, check_params, check_shapes, check_tokens
from convs2s_jax.models.config import AnyEncoder
from convs2s_jax.models.conversion import cast
from convs2s_jax.models.convs2s import ConvEncoderConfig
from convs2s_jax.models.execution import matmul_precision_context
from convs2s_jax.models.kinds import CommonConfig, Options, PartConfig
from convs2s_jax.nn import affine, convolution, embedding, output, struct, weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.keys import threefry
from convs2s_jax.nn.masking import mean, zero_padding
from convs2s_jax.nn.types import Array, Key


class FeatureFunctions(NamedTuple):
    """The functions of a kind of features, representations of a sentence of a fixed size.

    Attributes:
      init: as in `EncoderFunctions`.
      extract: (merged parameters, config, tokens [B, S] as in an encoder, options) -> features [B, F]; zero for a row
        of PAD.
    """

    init: Callable[..., Any]
    extract: Callable[..., Array]


class FeaturesConfig(PartConfig):
    """Base class of feature configs; `functions` are its functions."""

    functions: ClassVar[FeatureFunctions]


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
    """The convolutions of one width, [K, E, D]."""

    conv: Affine


@struct.dataclass
class KimParams:
    """Parameters of Kim's features: a token embedding without positions, and a bank for each width."""

    embedding: Embedding
    banks: tuple[Bank, ...]


def init_kim(key: Key, cfg: KimConfig, vocabulary: int, dim: int, _rate: float) -> KimParams:
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


def extract_kim(params: KimParams, _cfg: KimConfig, src: Array, options: Options) -> Array:
    """Compute one number per feature map (equations 2 and 3):  c_t = relu(w . x_{t:t+K-1} + b),  c = max_t c_t.

    Only windows inside the sentence count. A sentence shorter than K has one window, which starts at its first token
    and is padded with zeros. (Kim's code puts K_max - 1 zeros before and after every sentence, so its windows reach
    beyond it; the paper pads only sentences that are too short.)

    Tokens [B, S] have PAD on either side; the end symbol counts. The result [B, F] has the maps of the first width,
    then those of the second, and so on.
    """
    mask = src != PAD
    x = zero_padding(embed(params.embedding, src), mask)
    real = mask.astype(jnp.int32)
    begun, left = jnp.cumsum(real, axis=1), jnp.cumsum(real[:, ::-1], axis=1)[:, ::-1]

    def pooled(bank: Bank) -> Array:
        width = bank.conv.w.shape[0]
        padded = jnp.pad(x, ((0, 0), (0, width - 1), (0, 0)))
        c = jax.nn.relu(convolution.dense(bank.conv, padded, options.execution.convolution))
        inside = mask & ((left >= width) | (begun == 1))
        return maximum(c, inside)

    return jnp.concatenate([pooled(bank) for bank in params.banks], axis=-1)


def maximum(x: Array, mask: Array) -> Array:
    """Maximum of x [B, S, E] over the positions where mask [B, S] is True: [B, E]; zero in rows without any.

    The maximum is gathered at its argmax, the first one among ties, and only this element receives a gradient. The
    gradient of `jnp.max` instead compares x with the maximum. XLA may compute x twice and round it differently. Then no
    element is equal, and the gradient is 0 / 0.
    """
    least = jnp.full_like(x, jnp.finfo(x.dtype).min)
    place = jnp.argmax(jnp.where(mask[:, :, None], x, least), axis=1, keepdims=True)
    largest = jnp.take_along_axis(x, place, axis=1)[:, 0]
    return jnp.where(jnp.any(mask, axis=1)[:, None], largest, jnp.zeros_like(largest))


KimConfig.functions = FeatureFunctions(init_kim, extract_kim)


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


def extract_pooled(params: Any, cfg: PooledConfig, src: Array, options: Options) -> Array:
    """Encode the sentence and pool the values of the memory over its positions, [B, E]."""
    memory = cfg.encoder.functions.encode(params, cfg.encoder, src, options)
    pool = maximum if cfg.pooling == "max" else mean
    return pool(memory.values, memory.mask)


PooledConfig.functions = FeatureFunctions(
    lambda key, cfg, *sizes: cfg.encoder.functions.init(key, cfg.encoder, *sizes), extract_pooled
)

AnyFeatures = KimConfig | PooledConfig
"""The config of any kind of features: a union discriminated by `kind`. The first member is the default."""


@record
class ClassifierConfig(CommonConfig):
    """A text classifier.

    Attributes:
      kind: a text classifier.
      features: any kind of features.
    """

    kind: Literal["classifier"] = "classifier"
    embedding_dim: int = 300
    dropout: float = 0.5
    features: AnyFeatures = KimConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """Parameters of a classifier: those of the features, and the softmax layer [F -> L]."""

    features: Any
    output: Affine


def init(key: Key, cfg: ClassifierConfig, *, vocabulary: int, labels: int) -> ClassifierParams:
    """Initialise parameters with plain kernels (see `split`): V = vocabulary, L = labels.

    They are in float32, or in float64 under `jax_enable_x64`.
    """
    check_config(cfg, ClassifierConfig)
    return _init(threefry(key), cfg, vocabulary, labels)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _init(key: Key, cfg: ClassifierConfig, vocabulary: int, labels: int) -> ClassifierParams:
    features_key, output_key = jax.random.split(key)
    dim, rate = cfg.embedding_dim, cfg.dropout
    return ClassifierParams(
        features=cfg.features.functions.init(features_key, cfg.features, vocabulary, dim, rate),
        output=affine.init(output_key, cfg.features.features_dim(dim), labels, keep=1.0 - rate),
    )


def split(params: ClassifierParams, cfg: ClassifierConfig) -> ClassifierParams:
    """Split kernels into direction and length for training (`nn.weight_norm`), if the features use it."""
    check_params(params, ClassifierParams)
    check_config(cfg, ClassifierConfig)
    return weight_norm.split_normalised(params)


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
    functions = cfg.features.functions
    check_shapes("params.features", params.features, functions.init, cfg.features, cfg.embedding_dim)
    features_key, output_key = split_key(key, 2)
    params = cast(params, cfg)
    with matmul_precision_context(cfg.matmul_precision):
        z = functions.extract(params.features, cfg.features, src, Options(cfg.dropout, features_key, cfg.execution))
        return output.logits(params.output, dropout(z, cfg.dropout, output_key))
