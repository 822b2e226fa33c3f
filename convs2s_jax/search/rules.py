"""Scores of the next symbol: log-probabilities, penalties, forbidden symbols.

Shapes: B sentences with a beam of W hypotheses each, V symbols.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from convs2s_jax.core.tokens import EOS, PAD, UNK
from convs2s_jax.nn import struct
from convs2s_jax.nn.types import accumulation_dtype
from convs2s_jax.search.options import SearchOptions

SPECIAL = UNK + 1
"""Ids below this are special symbols."""


def log_probabilities(logits: Array, options: SearchOptions) -> Array:
    """Return log_softmax(logits / temperature) over the last axis, in nats; -inf in place of NaN.

    The probabilities of the M members of an ensemble are averaged, log (1/M) sum_m p_m, as in section 5.1 of the paper.
    With an `lm_weight`, the last member is a language model, and the result is  log p + lm_weight log p_lm  (Gulcehre
    et al. 2015, section 4.1), which is not normalised.

    Args:
      logits: [N, V], or [M, N, V] of several models. Log-probabilities may be passed as logits; at temperature 1 they
        are returned unchanged.
      options: the options, with numbers in the dtype of the scores (see `options.in_dtype`).

    Returns:
      [N, V] in that dtype.
    """
    log_probs = jax.nn.log_softmax(logits.astype(accumulation_dtype(logits.dtype)) / options.temperature)
    if log_probs.ndim == 3:
        members = log_probs if options.lm_weight is None else log_probs[:-1]
        mean = jax.nn.logsumexp(members, axis=0) - math.log(len(members))
        log_probs = mean if options.lm_weight is None else mean + options.lm_weight * log_probs[-1]
    return jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)


@struct.dataclass
class LogitBias:
    """The number added to the log-probability of each symbol at a step: 0, -unk_penalty, or -inf if forbidden.

    Attributes:
      special: [B, 4], for the four special symbols, by id.
      others: [B], the same for all other symbols.
    """

    special: Array
    others: Array

    def dense(self, vocab_size: int) -> Array:
        """Return the biases of all symbols, [B, V]."""
        rest = jnp.broadcast_to(self.others[:, None], (len(self.others), vocab_size - SPECIAL))
        return jnp.concatenate([self.special, rest], axis=1)


def logit_bias(options: SearchOptions, step: Array, max_lengths: Array) -> LogitBias:
    """Return what is added at a step, in nats.

    Padding is never produced. At the maximum length [B] only the end symbol is allowed, and before the minimum length
    it is forbidden. `step` [] is the number of tokens so far.
    """
    full = jnp.where(step >= max_lengths, -jnp.inf, 0.0)
    short = jnp.where(step < jnp.minimum(options.min_length, max_lengths), -jnp.inf, 0.0)
    special = symbol_bias(options, SPECIAL)[None, :] + full[:, None]
    return LogitBias(special=special.at[:, EOS].set(short), others=full)


def symbol_bias(options: SearchOptions, vocab_size: int) -> Array:
    """Return the bias of each symbol at any step, [V]: -inf for padding, -unk_penalty for unknown, otherwise 0."""
    symbol = jnp.arange(vocab_size, dtype=jnp.int32)
    return jnp.where(symbol == PAD, -jnp.inf, jnp.where(symbol == UNK, -options.unk_penalty, 0.0))


def repeats(history: Array, step: Array, size: int, vocab_size: int) -> Array:
    """Return which symbols would complete an n-gram that the hypothesis already contains, [B, W, V] bool.

    Args:
      history: [B, W, L], tokens so far; entries from index `step` on are ignored.
      step: [], number of tokens so far.
      size, vocab_size: n and V.
    """
    B, W, L = history.shape
    if size > L:
        return jnp.zeros((B, W, vocab_size), bool)
    starts = jnp.arange(L - size + 1, dtype=jnp.int32)
    same = jnp.broadcast_to(starts + size <= step, (B, W, len(starts)))
    for offset in range(size - 1):
        place = jnp.maximum(step - (size - 1) + offset, 0)
        newest = jax.lax.dynamic_slice_in_dim(history, place, 1, axis=2)
        same = same & (history[:, :, offset : offset + len(starts)] == newest)
    last = history[:, :, size - 1 :]
    rows = jnp.arange(B, dtype=jnp.int32)[:, None, None]
    hypotheses = jnp.arange(W, dtype=jnp.int32)[None, :, None]
    return jnp.zeros((B, W, vocab_size), bool).at[rows, hypotheses, last].max(same)


def keep_prefix(scores: Array, log_probs: Array, options: SearchOptions, prefixes: Array, step: Array) -> Array:
    """Within a forced prefix [B, P], padded, allow only its next token, with its usual score.

    scores [B, W, V] are those under the other rules, log_probs [B, W, V] those of the model, and step [] is the number
    of tokens so far.
    """
    P, V = prefixes.shape[1], log_probs.shape[-1]
    wanted = jnp.where(
        step < P, jax.lax.dynamic_index_in_dim(prefixes, jnp.minimum(step, P - 1), 1, keepdims=False), PAD
    )
    inside = (wanted != PAD)[:, None, None]
    biased = log_probs + symbol_bias(options, V)[None, None, :]
    hit = (jnp.arange(V, dtype=jnp.int32)[None, :] == wanted[:, None])[:, None, :]
    return jnp.where(inside, jnp.where(hit, biased, -jnp.inf), scores)
