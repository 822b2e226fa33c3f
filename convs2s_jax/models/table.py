"""All kinds of encoders and decoders, a line each."""

from convs2s_jax.models import no_encoder
from convs2s_jax.models.convs2s import decoder as conv_decoder
from convs2s_jax.models.convs2s import encoder as conv_encoder
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.light import decoder as light_decoder
from convs2s_jax.models.light import encoder as light_encoder
from convs2s_jax.models.light.decoder import LightDecoderConfig
from convs2s_jax.models.light.encoder import LightEncoderConfig
from convs2s_jax.models.no_encoder import NoEncoderConfig
from convs2s_jax.models.protocols import Decoder, Encoder
from convs2s_jax.models.recurrent import decoder as recurrent_decoder
from convs2s_jax.models.recurrent import encoder as recurrent_encoder
from convs2s_jax.models.recurrent.decoder import RecurrentDecoderConfig
from convs2s_jax.models.recurrent.encoder import RecurrentEncoderConfig
from convs2s_jax.models.slicenet import decoder as slicenet_decoder
from convs2s_jax.models.slicenet import encoder as slicenet_encoder
from convs2s_jax.models.slicenet.decoder import SliceNetDecoderConfig
from convs2s_jax.models.slicenet.encoder import SliceNetEncoderConfig

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
