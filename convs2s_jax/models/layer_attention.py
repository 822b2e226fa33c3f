"""Attention weights of every layer for given source-target pairs (section 3.3; shown in appendix C of the paper)."""

import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config, check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Array


def layer_attention(params: Params, cfg: ModelConfig, src: Array, tgt: Array) -> Array:
    """Attention weights of each target token over the source tokens, in each layer that attends.

    They are a^l_ij of equation 1 for the A attentions l of `cfg.decoder.attention_names`, in the same order. Several
    heads are averaged.

    Args:
      params: merged kernels, or what `precompute` returns for them.
      cfg: a model whose decoder attends.
      src: [B, S] tokens with the end symbol, PAD on the right.
      tgt: [B, T] tokens with the end symbol, PAD on the right.

    Returns:
      [B, A, T, S] in float32 or better. Row i is where the decoder looked when it predicted token i. Rows sum to one.
      Rows and columns are zero at PAD, so all weights are zero if a source contains only PAD.

    Raises:
      TypeError, ValueError: the decoder does not attend, or src and tgt are not tokens or differ in rows.
    """
    check_config(cfg, ModelConfig)
    check_pairs(src, tgt)
    if not cfg.attends:
        raise ValueError(f"decoder.kind is '{cfg.decoder.kind}' without attention: there are no weights to return")
    memory = encoder_decoder.prepare(params, cfg, encoder_decoder.encode(params, cfg, src))
    cache = encoder_decoder.init_cache(params, cfg, memory, len(tgt))
    inputs = encoder_decoder.decoder_inputs(tgt)
    _, layers, _ = encoder_decoder.advance_in_layers(params, cfg, memory, cache, inputs)
    real = (tgt != PAD)[:, None, :, None] & memory.mask[:, None, None, :]
    return jnp.where(real, jnp.stack(layers, axis=1), 0.0)
