"""The loss (section 4.2): cross entropy summed over target tokens, and its count."""

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.nn.types import Array, Key, wide


@flax.struct.dataclass
class Batch:
    """Sentence pairs. src [B, S] and tgt [B, T]: ids with the end symbol, PAD on the right; whole rows may be PAD."""

    src: Array
    tgt: Array


@flax.struct.dataclass
class LossSums:
    """Sums over target tokens, to be added over batches and devices and divided once.

    loss: nats, what is minimised; nll: nats, without smoothing; tokens: real target tokens, end symbols counted.
    """

    loss: Array
    nll: Array
    tokens: Array


CHUNKS = 8
"""Parts in which the output projection is computed: logits are recomputed and never stored (docs/performance.md)."""


def cross_entropy(logits: Array, targets: Array, smoothing: float) -> tuple[Array, Array]:
    """Label-smoothed cross entropy and plain negative log-likelihood, summed over real targets.

    As fairseq:  loss = (1 - s - s_i) nll + s_i sum_v(-log p_v),  s_i = s / (V - 1), the sum over all V entries.

    Args:
      logits: [..., V].
      targets: [...] ids; PAD counts nothing.
      smoothing: s in [0, 1).

    Returns:
      Two sums in nats.
    """
    lse = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    real = targets != PAD
    nll = jnp.sum(jnp.where(real, lse - picked, 0.0))
    if smoothing == 0.0:
        return nll, nll
    each = smoothing / (logits.shape[-1] - 1)
    total = jnp.sum(jnp.where(real, logits.shape[-1] * lse - jnp.sum(logits, axis=-1), 0.0))
    return (1.0 - smoothing - each) * nll + each * total, nll


def loss(params: Params, cfg: ModelConfig, batch: Batch, *, smoothing: float = 0.0, key: Key | None = None) -> LossSums:
    """Loss of a batch, summed.

    Args:
      params: merged kernels.
      cfg: model.
      batch: sentence pairs.
      smoothing: of labels.
      key: for dropout; None evaluates.
    """
    encoder_key, decoder_key = (None, None) if key is None else jax.random.split(key)
    params = encoder_decoder.cast(params, cfg)
    memory = encoder_decoder.encode(params, cfg, batch.src, key=encoder_key)
    cache = encoder_decoder.start(params, cfg, memory, batch.tgt.shape[0])
    inputs = encoder_decoder.decoder_inputs(batch.tgt)
    features, _, _ = encoder_decoder.advance(params, cfg, memory, cache, inputs, key=decoder_key)
    total, nll = _projected(params, cfg, features, batch.tgt, smoothing)
    return LossSums(loss=total, nll=nll, tokens=jnp.sum(batch.tgt != PAD))


def _projected(
    params: Params, cfg: ModelConfig, features: Array, targets: Array, smoothing: float
) -> tuple[Array, Array]:
    """Cross entropy of logits(features) in chunks: the logits of a chunk live only while they are used."""

    @jax.checkpoint
    def add_chunk(sums: tuple[Array, Array], chunk: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        total, nll = cross_entropy(encoder_decoder.logits(params, cfg, chunk[0]), chunk[1], smoothing)
        return (sums[0] + total, sums[1] + nll), None

    features, targets = features.reshape(-1, features.shape[-1]), targets.reshape(-1)
    count = CHUNKS if features.shape[0] % CHUNKS == 0 else 1
    chunks = (features.reshape(count, -1, features.shape[-1]), targets.reshape(count, -1))
    zero = jnp.zeros((), wide(features.dtype))
    return jax.lax.scan(add_chunk, (zero, zero), chunks)[0]
