"""Token and position embeddings (section 3.1): e = w + p."""

import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array, Key


@struct.dataclass
class Embedding:
    """Tables of an input embedding, in fairseq's layout.

    Attributes:
      table: [V, E], one row per word. Row PAD is zero at first, and stays zero unless the table is also the kernel of a
        softmax, which trains all rows.
      positions: [P, E], one row per position, or None without position embeddings. Row PAD is zero and row 0 is never
        read, so P = 1024 gives 1022 usable positions.
    """

    table: Array
    positions: Array | None


def init(key: Key, vocabulary: int, dim: int, max_positions: int | None, *, std: float = 0.1) -> Embedding:
    """Initialise tables with entries ~ N(0, std) and zero rows for padding (section 3.5).

    Args:
      key: random key for both tables.
      vocabulary: vocabulary size V.
      dim: embedding size E.
      max_positions: number of position rows P, or None for no position embedding.
      std: standard deviation; 0.1 in section 3.5.
    """
    token_key, position_key = jax.random.split(key)
    return Embedding(
        table=_table(token_key, vocabulary, dim, std),
        positions=None if max_positions is None else _table(position_key, max_positions, dim, std),
    )


def embed(params: Embedding, tokens: Array, start: Array | None = None) -> Array:
    """Embed tokens: e = w + p, token plus absolute position.

    Positions count real tokens only, so padding on either side has no effect. The first real token reads row PAD + 1.

    Args:
      params: tables.
      tokens: [B, T] ids, PAD at padded positions.
      start: [B], number of real tokens of the sequence before `tokens`; None for 0.

    Returns:
      [B, T, E]. Positions with PAD contain row PAD of the table, which is zero unless a softmax has trained it.
    """
    e = rows(params.table, tokens)
    if params.positions is not None:
        e += position_embeddings(params.positions, tokens, start)
    real = (tokens != PAD)[:, :, None]
    return jnp.where(real, e, jax.lax.stop_gradient(e))  # nothing here trains row PAD


def position_embeddings(table: Array, tokens: Array, start: Array | None = None) -> Array:
    """Return the row of a table [P, E] for the position of each token, [B, T, E]. Arguments are as in `embed`.

    Rows of T tokens from position 0 on are among the first T + PAD + 1. Only these have a gradient, so on a mesh whose
    program XLA partitions (`parallel=jit`) only these are reduced.
    """
    if start is None:
        table = table[: tokens.shape[1] + PAD + 1]
    return rows(table, position_rows(tokens, start))


def rows(table: Array, indices: Array) -> Array:
    """Return table[indices], whose dtype may be too small for the number of rows, to which indices are clipped."""
    return jnp.asarray(table)[indices.astype(jnp.int32)]  # numpy arrays do not accept traced indices


def position_rows(tokens: Array, start: Array | None = None) -> Array:
    """Return the row of `Embedding.positions` that each token reads, [B, T]. Arguments are as in `embed`."""
    real = (tokens != PAD).astype(jnp.int32)  # there may be more tokens than 8-bit ids can count
    before = 0 if start is None else start.astype(jnp.int32)[:, None]
    return (jnp.cumsum(real, axis=1) + before) * real + PAD


def length_after(length: Array, tokens: Array) -> Array:
    """Return the number of real tokens read so far, [N]: `length` [N] plus those in `tokens` [N, T]."""
    return length + jnp.sum(tokens != PAD, axis=1, dtype=length.dtype)


def _table(key: Key, rows: int, dim: int, std: float) -> Array:
    return (std * jax.random.normal(key, (rows, dim))).at[PAD].set(0.0)
