"""Registry of all kinds of encoders and decoders, one line each."""

from typing import Any

from convs2s_jax.models import no_encoder
from convs2s_jax.models.convs2s import decoder as conv_decoder
from convs2s_jax.models.convs2s import encoder as conv_encoder
from convs2s_jax.models.convs2s import lookup as conv_lookup
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.light import decoder as light_decoder
from convs2s_jax.models.light import encoder as light_encoder
from convs2s_jax.models.light.decoder import LightDecoderConfig
from convs2s_jax.models.light.encoder import LightEncoderConfig
from convs2s_jax.models.no_encoder import NoEncoderConfig
from convs2s_jax.models.protocols import (
    CacheT,
    Decoder,
    DecoderConfigT,
    Encoder,
    EncoderConfigT,
    FastDecoder,
    MemoryT,
    ParamsT,
    PlainParamsT,
)
from convs2s_jax.models.recurrent import decoder as recurrent_decoder
from convs2s_jax.models.recurrent import encoder as recurrent_encoder
from convs2s_jax.models.recurrent.decoder import RecurrentDecoderConfig
from convs2s_jax.models.recurrent.encoder import RecurrentEncoderConfig
from convs2s_jax.models.slicenet import decoder as slicenet_decoder
from convs2s_jax.models.slicenet import encoder as slicenet_encoder
from convs2s_jax.models.slicenet.decoder import SliceNetDecoderConfig
from convs2s_jax.models.slicenet.encoder import SliceNetEncoderConfig


def _encoder(_config: type[EncoderConfigT], functions: Encoder[EncoderConfigT, ParamsT], /) -> Encoder[Any, Any]:
    """Return an entry of the registry. The type checker compares the functions with the interface, for this config."""
    return functions


def _decoder(
    _config: type[DecoderConfigT], functions: Decoder[DecoderConfigT, ParamsT, MemoryT, CacheT], /
) -> Decoder[Any, Any, Any, Any]:
    """Return an entry of the registry. The type checker compares the functions with the interface, for this config."""
    return functions


def _fast_decoder(
    _config: type[DecoderConfigT], functions: FastDecoder[DecoderConfigT, PlainParamsT, ParamsT, MemoryT, CacheT], /
) -> FastDecoder[Any, Any, Any, Any, Any]:
    """Return an entry of the registry. The type checker compares the functions with the interface, for this config."""
    return functions


ENCODERS: dict[str, Encoder[Any, Any]] = {
    "conv": _encoder(ConvEncoderConfig, conv_encoder),
    "light": _encoder(LightEncoderConfig, light_encoder),
    "recurrent": _encoder(RecurrentEncoderConfig, recurrent_encoder),
    "slicenet": _encoder(SliceNetEncoderConfig, slicenet_encoder),
    "none": _encoder(NoEncoderConfig, no_encoder),
}
DECODERS: dict[str, Decoder[Any, Any, Any, Any]] = {
    "conv": _decoder(ConvDecoderConfig, conv_decoder),
    "light": _decoder(LightDecoderConfig, light_decoder),
    "recurrent": _decoder(RecurrentDecoderConfig, recurrent_decoder),
    "slicenet": _decoder(SliceNetDecoderConfig, slicenet_decoder),
}
FAST_DECODERS: dict[str, FastDecoder[Any, Any, Any, Any, Any]] = {
    "conv": _fast_decoder(ConvDecoderConfig, conv_lookup),
}
"""Kinds with a faster decoder for token-by-token decoding, which does some of its work once for all steps."""

AnyEncoder = ConvEncoderConfig | LightEncoderConfig | RecurrentEncoderConfig | SliceNetEncoderConfig | NoEncoderConfig
"""The config of any kind of encoder: a union discriminated by `kind`. The first member is the default."""
AnyDecoder = ConvDecoderConfig | LightDecoderConfig | RecurrentDecoderConfig | SliceNetDecoderConfig
"""The config of any kind of decoder."""
