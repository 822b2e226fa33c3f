"""Which symbols a hypothesis may take next, and at what price."""

import jax
import jax.numpy as jnp
from jax import Array

from convs2s_jax.core.tokens import EOS, PAD, UNK
from convs2s_jax.search.config import SearchConfig


def log_probabilities(logits: Array, cfg: SearchConfig) -> Array:
    """log_softmax(logits / temperature) over the last axis, in float32 nats; -inf where that is no number.

    Log-probabilities may be given for logits: at temperature 1 they come back as they are.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32) / cfg.temperature)
    return jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)


def prices(cfg: SearchConfig, step: Array, max_lengths: Array, vocab_size: int) -> Array:
    """What is added to the log-probability of each symbol at a step: 0, -unk_penalty, or -inf where forbidden.

    Padding is never produced. At the longest allowed length only the end symbol is, and before the shortest allowed
    length it is not.

    Args:
      cfg: the options.
      step: [], tokens that live hypotheses have so far.
      max_lengths: [B], most tokens before the end symbol.
      vocab_size: V.

    Returns:
      [B, V] float32 nats.
    """
    symbol = jnp.arange(vocab_size)
    full = step >= max_lengths
    short = step < jnp.minimum(cfg.min_length, max_lengths)
    price = jnp.where(symbol == PAD, -jnp.inf, jnp.where(symbol == UNK, jnp.float32(-cfg.unk_penalty), 0.0))
    forbidden = jnp.where((symbol == EOS)[None, :], short[:, None], full[:, None])
    return jnp.where(forbidden, -jnp.inf, price[None, :])
