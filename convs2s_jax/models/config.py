"""Configuration of an encoder-decoder: which kinds there are, and which of them can be combined."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from convs2s_jax.core.config import add_kind, check, record
from convs2s_jax.models.checks import check_config
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig
from convs2s_jax.models.kinds import (
    CommonConfig,
    DecoderConfig,
    DecoderFunctions,
    EncoderConfig,
    EncoderFunctions,
    NoEncoderConfig,
)
from convs2s_jax.models.light import LightDecoderConfig, LightEncoderConfig
from convs2s_jax.models.recurrent import RecurrentDecoderConfig, RecurrentEncoderConfig
from convs2s_jax.models.slicenet import SliceNetDecoderConfig, SliceNetEncoderConfig

if TYPE_CHECKING:  # type checkers do not know which kinds are registered
    AnyEncoder = EncoderConfig
    AnyDecoder = DecoderConfig
else:
    AnyEncoder = (
        ConvEncoderConfig | LightEncoderConfig | RecurrentEncoderConfig | SliceNetEncoderConfig | NoEncoderConfig
    )
    AnyDecoder = ConvDecoderConfig | LightDecoderConfig | RecurrentDecoderConfig | SliceNetDecoderConfig
"""The config of any kind of encoder or decoder: unions discriminated by `kind`. The first member is the default."""


@record
class ModelConfig(CommonConfig):
    """An encoder-decoder.

    Attributes:
      kind: an encoder with a decoder.
      encoder: any kind of encoder.
      decoder: any kind of decoder.
      share_embeddings: use one embedding table for encoder, decoder and softmax (fairseq's share_all_embeddings). It
        requires decoder.tied_output, and one vocabulary for both sides (data.vocabulary.joint).
    """

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    encoder: AnyEncoder = ConvEncoderConfig()
    decoder: AnyDecoder = ConvDecoderConfig()
    share_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        E, decoder = self.embedding_dim, self.decoder
        self.encoder.check_dim(E)
        decoder.check_dim(E)
        O = decoder.features_dim(E)
        check(
            not decoder.tied_output or O == E,
            f"decoder.out_dim is {O} with tied_output: the embedding table has {E} columns; make the two equal",
        )
        reads = decoder.reads_memory
        check(
            reads or not self.reads_source,
            "decoder does not read the source, but there is an encoder: let a layer attend, such as "
            "decoder.attention_layers=[1], or set encoder.kind to 'none' for a language model",
        )
        check(
            self.reads_source or not reads,
            "encoder.kind is 'none', but the decoder reads a source: a language model is a convolutional decoder with "
            "decoder.attention_layers=[]",
        )
        check(
            not self.share_embeddings or decoder.tied_output,
            "share_embeddings is True, but the softmax has its own kernel: set decoder.tied_output to True",
        )
        check(
            not self.share_embeddings or self.reads_source,
            "share_embeddings is True, but encoder.kind is 'none': there is no table to share; remove the setting",
        )

    @property
    def reads_source(self) -> bool:
        """Whether the model reads a source; if not, it is a language model of the target."""
        return self.encoder.reads_source

    @property
    def max_source(self) -> int:
        """Maximum length of a source in tokens, including its end symbol."""
        return self.encoder.max_length

    @property
    def max_target(self) -> int:
        """Maximum length of a target in tokens, including its end symbol."""
        return self.decoder.max_length

    @property
    def attends(self) -> bool:
        """Whether the decoder returns attention weights over the source tokens."""
        return len(self.decoder.attention_names) > 0


def register_encoder(config: type[EncoderConfig], *, init: Callable[..., Any], encode: Callable[..., Any]) -> None:
    """Register a kind of encoder for the rest of the process, so that `ModelConfig(encoder=config())` uses it.

    Dictionaries with its kind, such as those in a `config.json`, can be read too, in processes that have registered it.
    On a mesh, parameters that are not listed in `training.sharding.RULES` need a rule in `MeshConfig.rules`.

    Args:
      config: a `record` that inherits from `EncoderConfig`, with a field `kind` whose default is the name of the kind.
        Defining the class and functions again, under the same name, replaces what was registered.
      init, encode: as in `EncoderFunctions`.

    Raises:
      ValueError: the kind is taken, or the class is not a record of a kind of encoder.
    """
    add_kind(AnyEncoder, EncoderConfig, config)
    config.functions = EncoderFunctions(init, encode)


def register_decoder(config: type[DecoderConfig], **functions: Callable[..., Any]) -> None:
    """Register a kind of decoder, as `register_encoder` does for encoders.

    Args:
      config: a `record` that inherits from `DecoderConfig`, with a field `kind` whose default is the name of the kind.
      **functions: `init`, `init_cache`, `advance` and perhaps `prepare`, as in `DecoderFunctions`.

    Raises:
      ValueError: the kind is taken, or the class is not a record of a kind of decoder.
    """
    add_kind(AnyDecoder, DecoderConfig, config)
    config.functions = DecoderFunctions(**functions)


class ReceptiveFields(NamedTuple):
    """Tokens that a position sees after each layer, from bottom to top, its own included.

    They are source tokens around it, and target tokens up to it; None for a recurrent side, which sees all.
    """

    encoder: tuple[int, ...] | None
    decoder: tuple[int, ...] | None


def receptive_fields(cfg: ModelConfig) -> ReceptiveFields:
    """Return the receptive fields of both sides: 1 + sum of (K - 1) r over the layers up to each, width K, dilation r.

    Six blocks of width 5 see 25 tokens (section 3.2). Residual connections and padding do not change them. Near the
    edges of a sentence, fewer tokens exist.
    """
    check_config(cfg, ModelConfig)

    def fields(reaches: list[int] | None) -> tuple[int, ...] | None:
        return None if reaches is None else tuple(itertools.accumulate(reaches, initial=1))[1:]

    return ReceptiveFields(encoder=fields(cfg.encoder.reaches), decoder=fields(cfg.decoder.reaches))
