"""All kinds of encoders and decoders, a line each."""

from convs2s_jax.models import (
    conv_decoder,
    conv_encoder,
    light_decoder,
    light_encoder,
    no_encoder,
    recurrent_decoder,
    recurrent_encoder,
    slicenet_decoder,
    slicenet_encoder,
)
from convs2s_jax.models.conv_decoder import ConvDecoderConfig
from convs2s_jax.models.conv_encoder import ConvEncoderConfig
from convs2s_jax.models.kinds import Decoder, Encoder
from convs2s_jax.models.light_decoder import LightDecoderConfig
from convs2s_jax.models.light_encoder import LightEncoderConfig
from convs2s_jax.models.no_encoder import NoEncoderConfig
from convs2s_jax.models.recurrent_encoder import RecurrentEncoderConfig
from convs2s_jax.models.recurrent_records import RecurrentDecoderConfig
from convs2s_jax.models.slicenet_decoder import SliceNetDecoderConfig
from convs2s_jax.models.slicenet_encoder import SliceNetEncoderConfig

ENCODERS: dict[str, Encoder] = {
    "conv": conv_encoder.KIND,
    "light": light_encoder.KIND,
    "recurrent": recurrent_encoder.KIND,
    "slicenet": slicenet_encoder.KIND,
    "none": no_encoder.KIND,
}
DECODERS: dict[str, Decoder] = {
    "conv": conv_decoder.KIND,
    "light": light_decoder.KIND,
    "recurrent": recurrent_decoder.KIND,
    "slicenet": slicenet_decoder.KIND,
}

AnyEncoder = ConvEncoderConfig | LightEncoderConfig | RecurrentEncoderConfig | SliceNetEncoderConfig | NoEncoderConfig
"""The config of any kind of encoder: a union, told apart by `kind`; the first member is the default."""
AnyDecoder = ConvDecoderConfig | LightDecoderConfig | RecurrentDecoderConfig | SliceNetDecoderConfig
"""The config of any kind of decoder."""
