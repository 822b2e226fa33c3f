"""Receptive fields: how many tokens a position of each layer sees (section 3.2: six blocks of width 5 see 25)."""

from typing import NamedTuple

from convs2s_jax.models.checks import check_config
from convs2s_jax.models.config import ModelConfig


class ReceptiveFields(NamedTuple):
    """Tokens that a position sees after each layer, from bottom to top. The last entry is for the whole stack.

    Attributes:
      encoder: source tokens, around the position and including it; None for a recurrent encoder, which sees all; empty
        without an encoder.
      decoder: target tokens, the position's own and those before it; None for a recurrent decoder. Attention sees the
        whole source.
    """

    encoder: tuple[int, ...] | None
    decoder: tuple[int, ...] | None


def receptive_fields(cfg: ModelConfig) -> ReceptiveFields:
    """Return the receptive fields of both sides: 1 + sum of (K - 1) r over the layers up to each, width K, dilation r.

    Residual connections and padding do not change them. Near the edges of a sentence, fewer tokens exist.
    """
    check_config(cfg, ModelConfig)
    return ReceptiveFields(encoder=cfg.encoder.receptive_fields, decoder=cfg.decoder.receptive_fields)
