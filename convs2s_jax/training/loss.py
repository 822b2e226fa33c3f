"""The loss (section 4.2): cross entropy summed over target tokens, and the number of tokens."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.checks import check_config, check_params, check_static
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.models.execution import matmul_precision_context
from convs2s_jax.nn.dropout import split_key
from convs2s_jax.nn.loops import scan
from convs2s_jax.nn.types import Array, Key, accumulation_dtype
from convs2s_jax.training.batch import Batch, check_form
from convs2s_jax.training.mesh import ROWS
from convs2s_jax.training.softmax import chunks, summed_cross_entropy
from convs2s_jax.training.step import LossSums

SOFTMAX_ROWS = 512
"""Default of `ExecutionConfig.softmax_rows`, for the caches of CPUs."""


def cross_entropy(
    logits: Array, targets: Array, smoothing: float | Array, *, real: Array | None = None
) -> tuple[Array, Array]:
    """Label-smoothed cross entropy and plain negative log-likelihood, summed over real targets.

    As in fairseq:  loss = (1 - s - s_i) nll + s_i sum_v(-log p_v),  s_i = s / (V - 1), with the sum over all V entries.

    Args:
      logits: [..., V].
      targets: [...] ids.
      smoothing: s in [0, 1). If it is the number 0, and not an array, the sum over V is left out.
      real: [...], True where a target counts; None for all targets except PAD.

    Returns:
      Two sums in nats.
    """
    lse = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    real = targets != PAD if real is None else real
    nll = jnp.sum(jnp.where(real, lse - picked, 0.0))
    if isinstance(smoothing, jax.Array):
        smoothing = smoothing.astype(nll.dtype)
    elif smoothing == 0.0:
        return nll, nll
    each = smoothing / (logits.shape[-1] - 1)
    total = jnp.sum(jnp.where(real, logits.shape[-1] * lse - jnp.sum(logits, axis=-1), 0.0))
    return (1.0 - smoothing - each) * nll + each * total, nll


def loss(
    params: Params,
    cfg: ModelConfig,
    batch: Batch,
    *,
    smoothing: float | Array = 0.0,
    first_order: bool = False,
    key: Key | None = None,
) -> LossSums:
    """Return the summed loss of a batch. It has derivatives in forward and in reverse mode, of any order.

    Args:
      params: merged kernels.
      cfg: model.
      batch: sentence pairs; `training.batch.check_batch` checks their values, which a compiled loss cannot.
      smoothing: label smoothing, in [0, 1), a number or an array [], which can be traced.
      first_order: for the training step: faster, with a gradient of `LossSums.loss` only, in reverse mode only. The
        gradient of the softmax layer is computed in the forward pass (`training.softmax`), and `smoothing` is static.
      key: for dropout, one key or the keys [B] of `nn.keys.row_keys`; None for no dropout.

    Raises:
      ValueError: src and tgt differ in rows, the devices of the program's mesh cannot share them evenly, or `smoothing`
        is out of range or has axes.
    """
    if first_order:
        check_static("smoothing", smoothing)
    params, features = _features(params, cfg, batch, smoothing, key)
    shards = _row_shards(len(batch.tgt))
    if first_order:
        with matmul_precision_context(cfg.matmul_precision):
            layer = encoder_decoder.output_layer(params, cfg, features.dtype)
            rows = cfg.execution.softmax_rows or SOFTMAX_ROWS
            total, nll = summed_cross_entropy(
                layer, features, batch.tgt, smoothing=float(smoothing), shards=shards, rows=rows
            )
    else:
        smoothing = smoothing if isinstance(smoothing, jax.Array) else float(smoothing)
        total, nll = _projected(params, cfg, features, batch.tgt, smoothing, shards)
    return LossSums(loss=total, nll=nll, tokens=jnp.sum(batch.tgt != PAD))


def _row_shards(rows: int) -> int:
    """Number of devices over which XLA shards the rows of the program being traced."""
    mesh = jax.sharding.get_abstract_mesh()
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    shards = math.prod(mesh.shape[name] for name, kind in types if name in ROWS and kind == AxisType.Auto)
    if rows % shards:
        raise ValueError(f"{rows} rows cannot be split over {shards} devices: use a multiple")
    return shards


def _features(
    params: Params, cfg: ModelConfig, batch: Batch, smoothing: float | Array, key: Key | None
) -> tuple[Params, Array]:
    """The parameters in the dtype of the computation, and the decoder's features [B, T, O]."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    check_form(batch)
    if jnp.ndim(smoothing):
        raise ValueError(f"smoothing has shape {jnp.shape(smoothing)}: pass one number, or map with jax.vmap")
    if not isinstance(smoothing, jax.core.Tracer) and not 0.0 <= float(smoothing) < 1.0:
        raise ValueError(f"smoothing is {smoothing}: use 0 or more and less than 1")
    encoder_key, decoder_key = split_key(key, 2)
    params = conversion.cast(params, cfg)
    memory = encoder_decoder.prepare(params, cfg, encoder_decoder.encode(params, cfg, batch.src, key=encoder_key))
    cache = encoder_decoder.init_cache(params, cfg, memory, batch.tgt.shape[0])
    inputs = encoder_decoder.decoder_inputs(batch.tgt)
    features, _, _ = encoder_decoder.advance(params, cfg, memory, cache, inputs, key=decoder_key)
    return params, features


def _projected(
    params: Params, cfg: ModelConfig, features: Array, targets: Array, smoothing: float | Array, shards: int
) -> tuple[Array, Array]:
    """Cross entropy of logits(features) in chunks, whose logits are recomputed for the gradient and never stored."""

    @jax.checkpoint
    def add_chunk(
        params: Params, sums: tuple[Array, Array], chunk: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        total, nll = cross_entropy(encoder_decoder.logits(params, cfg, chunk[0]), chunk[1], smoothing)
        return (sums[0] + total, sums[1] + nll), None

    zero = jnp.zeros((), accumulation_dtype(features.dtype))
    cut = tuple(chunks(x, shards, cfg.execution.softmax_rows or SOFTMAX_ROWS) for x in (features, targets))
    return scan(add_chunk, params, (zero, zero), cut)[0]
