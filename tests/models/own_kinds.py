"""A configuration file with an encoder and a decoder of its own, as a user outside the package would write them.

The encoder's memory is the embedded words. The decoder's features are tanh(W [sum of the words so far; mean of the
source] + b).
"""

from typing import Literal

import jax
import jax.numpy as jnp

import convs2s_jax as convs2s
from convs2s_jax.core.config import record
from convs2s_jax.models.kinds import DecoderConfig, EncoderConfig, Memory
from convs2s_jax.nn import affine, embedding, masking, output, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.embedding import Embedding, embed

PAD = 1


@record
class WordsConfig(EncoderConfig):
    kind: Literal["words"] = "words"
    max_length: int = 50


@struct.dataclass
class Words:
    embedding: Embedding


def init_words(key, cfg, vocabulary, dim, rate):
    return Words(embedding=embedding.init(key, vocabulary, dim, None))


def encode(params, cfg, src, options):
    mask = src != PAD
    z = jnp.where(mask[..., None], embed(params.embedding, src), 0.0)
    return Memory(keys=z, values=z, mask=mask, summary=masking.mean(z, mask))


@record
class SumsConfig(DecoderConfig):
    kind: Literal["sums"] = "sums"
    max_length: int = 50


@struct.dataclass
class Sums:
    embedding: Embedding
    map_out: Affine
    output: Affine


def init_sums(key, cfg, vocabulary, dim, rate):
    keys = jax.random.split(key, 3)
    return Sums(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        map_out=affine.init(keys[1], 2 * dim, dim),
        output=output.init(keys[2], dim, vocabulary, tied=False),
    )


def init_cache(params, cfg, memory, rows):
    return jnp.zeros((rows, params.embedding.table.shape[1]))


def advance(params, cfg, memory, cache, tokens, options):
    e = jnp.where((tokens != PAD)[..., None], embed(params.embedding, tokens), 0.0)
    sums = cache[:, None] + jnp.cumsum(e, axis=1)
    source = jnp.repeat(memory.summary, len(tokens) // len(memory.mask), axis=0)[:, None]
    x = jnp.concatenate([sums, jnp.broadcast_to(source, sums.shape)], axis=-1)
    return jnp.tanh(linear(params.map_out, x)), (), sums[:, -1]


convs2s.register_encoder(WordsConfig, init=init_words, encode=encode)
convs2s.register_decoder(SumsConfig, init=init_sums, init_cache=init_cache, advance=advance)


def get_config():
    return {
        "data": {"corpus": "cldr", "src": "en", "tgt": "de"},
        "model": {"embedding_dim": 8, "encoder": {"kind": "words"}, "decoder": {"kind": "sums", "max_length": 20}},
    }
