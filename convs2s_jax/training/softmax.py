"""The softmax layer in the training step: its gradient is computed in the forward pass, chunk by chunk.

With scores a = W h + b of a row, m = max a, e = exp(a - m) and s = sum e, the gradient of its loss with respect to a is

    (e - (1 - s_l - s_i) s 1[v = target]) / s - s_i,    s_l the label smoothing, s_i = s_l / (V - 1).

While e of a chunk is in cache, both of its products are computed: with the kernel for dh and with the features for dW.
The division by s scales the rows of features and of dh, which are narrower than e. The constant s_i is the same for all
words, so its two products are those of a row with a sum. No scores are stored, and none are computed twice.

This has no forward mode (`jax.jvp`, `jax.hessian`); `training.loss.loss` has one, with the same results.
"""

from functools import partial

import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn import output
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import Array, accumulation_dtype

Static = tuple[float, int, int, str | None]
"""Smoothing, shards and rows as in `summed_cross_entropy`, and the precision of products, None for JAX's default."""


def summed_cross_entropy(
    layer: Affine, features: Array, targets: Array, *, smoothing: float = 0.0, shards: int = 1, rows: int
) -> tuple[Array, Array]:
    """`loss.cross_entropy` of the scores W h + b, with respect to the kernel, the bias and the features.

    Args:
      layer: kernel [O, V] in the dtype of the features, bias [V].
      features: [B, T, O].
      targets: [B, T] ids, PAD where nothing counts.
      smoothing: label smoothing, in [0, 1).
      shards: number of devices over which the rows are sharded, a divisor of B. Each accumulates its own gradient of
        the kernel, and these are summed after the last chunk.
      rows: maximum rows of a chunk on a device (`ExecutionConfig.softmax_rows`).

    Returns:
      Two sums in nats: the loss, and the negative log-likelihood, whose gradient is taken as zero.
    """
    static = smoothing, shards, rows, jax.default_matmul_precision.value
    return _sums(layer, features, targets.astype(jnp.int32), static)  # 8-bit ids could not be compared with V


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _sums(layer: Affine, features: Array, targets: Array, static: Static) -> tuple[Array, Array]:
    return _forward(layer, features, targets, static)[0]  # XLA removes the gradient, which nothing reads


def _forward(
    layer: Affine, features: Array, targets: Array, static: Static
) -> tuple[tuple[Array, Array], tuple[Affine, tuple[Array, Array] | None, Array]]:
    """The sums, and the gradient of the first with respect to the layer and the features.

    The gradient of the layer excludes its part that is the same for all words, which is returned separately: for all
    columns of the kernel [O], and for all entries of the bias.
    """
    smoothing, shards, limit, precision = static
    dtype, V = accumulation_dtype(features.dtype), layer.b.shape[0]
    each = smoothing / (V - 1)
    keep = 1.0 - smoothing - each
    product = partial(jnp.einsum, precision=precision, preferred_element_type=dtype)

    def chunk(sums: tuple[Array, Array], rows: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, target = rows
        with jax.default_matmul_precision(precision):
            scores = output.logits(layer, h)
        m = jnp.max(scores, axis=-1, keepdims=True)
        e = jnp.exp(scores - m)
        s = jnp.sum(e, axis=-1, keepdims=True)
        hit = jax.lax.broadcasted_iota(target.dtype, e.shape, e.ndim - 1) == target[..., None]
        e = jnp.where(hit, e - keep * s, e).astype(h.dtype)
        scale = jnp.where(target != PAD, 1.0 / s[..., 0], 0.0)[..., None]
        scaled = (h.astype(dtype) * scale).astype(h.dtype)
        # with a second axis of rows, of length 1, XLA's CPU compiler finds a faster product
        dw = product("...iNO,...iNV->...OV", scaled[..., None, :, :], e[..., None, :, :])
        db = product("...N,...NV->...V", scale[..., 0].astype(h.dtype), e)
        dh = product("...NV,OV->...NO", e, layer.w) * scale
        picked = jnp.take_along_axis(scores, target[..., None], axis=-1)[..., 0]
        return (sums[0] + dw, sums[1] + db), (dh.astype(h.dtype), (m + jnp.log(s))[..., 0], picked)

    cut = chunks(features, shards, limit), chunks(targets, shards, limit)
    start = [jnp.zeros((*cut[0].shape[1:-2], *shape), dtype) for shape in (layer.w.shape, layer.b.shape)]
    (dw, db), (dh, lse, picked) = jax.lax.scan(chunk, (start[0], start[1]), cut)
    if shards > 1:  # here, so that all of the backward pass can overlap with the reduction
        dw, db = jnp.sum(dw, axis=0), jnp.sum(db, axis=0)
    dh = _whole(dh, features.shape, shards)
    lse, picked = (jnp.where(cut[1] != PAD, x, 0.0) for x in (lse, picked))
    nll = jnp.sum(lse - picked)
    if not smoothing:
        return (nll, nll), (Affine(w=dw, b=db), None, dh)
    # the scores of all words of the real rows add up to  (sum h) . (sum_v W_v) + rows sum_v b_v
    real = (targets != PAD).astype(dtype)
    count, h, column = jnp.sum(real), product("BT,BTO->O", real, features.astype(dtype)), jnp.sum(layer.w, 1, dtype)
    total = V * jnp.sum(lse) - product("O,O->", h, column) - count * jnp.sum(layer.b)
    dh -= (each * product("BT,O->BTO", real, column)).astype(dh.dtype)
    return (keep * nll + each * total, nll), (Affine(w=dw, b=db), (each * h, each * count), dh)


def _backward(
    _static: Static, gradients: tuple[Affine, tuple[Array, Array] | None, Array], cotangents: tuple[Array, Array]
) -> tuple[Affine, Array, None]:
    layer, constant, dh = gradients
    g = cotangents[0]
    if constant is not None:
        layer = Affine(w=layer.w - constant[0][:, None], b=layer.b - constant[1])
    # the kernel has the dtype of the features
    return Affine(w=(g * layer.w).astype(dh.dtype), b=g * layer.b), g.astype(dh.dtype) * dh, None


_sums.defvjp(_forward, _backward)


def chunks(x: Array, shards: int, rows: int) -> Array:
    """[B, T, ...] to chunks of at most `rows` rows on each device: [count, N, ...], or [count, shards, N, ...].

    Targets of PAD fill the last one.
    """
    x = x.reshape(shards, -1, *x.shape[2:])
    count = max(1, -(-x.shape[1] // rows))
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % count), *((0, 0),) * (x.ndim - 2)), constant_values=PAD)
    x = jnp.moveaxis(x.reshape(shards, count, -1, *x.shape[2:]), 1, 0)
    return x[:, 0] if shards == 1 else x


def _whole(x: Array, shape: tuple[int, ...], shards: int) -> Array:
    """The array [B, T, O] that `chunks` has split."""
    x = jnp.moveaxis(x.reshape(len(x), shards, -1, shape[-1]), 0, 1).reshape(shards, -1, shape[-1])
    return x[:, : shape[0] * shape[1] // shards].reshape(shape)
