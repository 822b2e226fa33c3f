"""Lookup tables for decoding: the first layer's products for every word and every position.

The input of the first convolution is linear in the embedding, x = (w + p) W + b, and so are the products of its taps:

    y_t = b' + sum_j x_{t-K+1+j} w'_j = b' + sum_j (word_j[token_{t-K+1+j}] + position_j[place_{t-K+1+j}])
"""

import jax.numpy as jnp

from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.embedding import Embedding, widened
from convs2s_jax.nn.types import Array, accumulation_dtype


@struct.dataclass
class Table:
    """A table with one row per word or position. The last row is for the zeros before the first word.

    Attributes:
      inputs: [V + 1, C] or [P + 1, C], inputs of the convolution.
      products: [V + 1, K, D] or [P + 1, K, D], their products with each tap.
    """

    inputs: Array
    products: Array


@struct.dataclass
class Tables:
    """The tables of a first layer.

    Attributes:
      words: one row per word.
      positions: one row per position; None without position embeddings.
      bias: [D], bias of the convolution.
    """

    words: Table
    positions: Table | None
    bias: Array


@struct.dataclass
class Words:
    """T words of each of N hypotheses.

    Attributes:
      tokens: [N, T], token ids.
      places: [N, T], rows of their positions (`nn.embedding.position_rows`).
    """

    tokens: Array
    places: Array


def size(embedding: Embedding, conv: Affine) -> int:
    """Return the size in bytes of the tables that `init` would build, without the bias."""
    rows = sum(len(rows) + 1 for rows in (embedding.table, embedding.positions) if rows is not None)
    width, inputs, outputs = conv.w.shape
    return int(rows * (inputs + width * outputs) * conv.w.dtype.itemsize)


def init(embedding: Embedding, map_in: Affine, conv: Affine) -> Tables:
    """Build the tables of an embedding, the map [E -> C] after it and a convolution w [K, C, D]."""

    def table(x: Array) -> Table:
        x = jnp.concatenate([x, jnp.zeros_like(x[:1])])
        return Table(inputs=x, products=jnp.einsum("VC,KCD->VKD", x, conv.w))

    words = linear(map_in, embedding.table)
    if embedding.positions is None:
        return Tables(words=table(words), positions=None, bias=conv.b)
    positions = table(embedding.positions.astype(map_in.w.dtype) @ map_in.w)
    return Tables(words=table(words), positions=positions, bias=conv.b)


def init_cache(tables: Tables, rows: int) -> Words:
    """Create the history before the first word: K - 1 words for each of N rows."""
    shape = (rows, tables.words.products.shape[1] - 1)
    before = [0 if table is None else len(table.inputs) - 1 for table in (tables.words, tables.positions)]
    return Words(*(jnp.full(shape, row, jnp.int32) for row in before))


def read(tables: Tables, words: Words) -> Array:
    """Look up the input of the first convolution, [N, T, C]."""
    words = _within(tables, words)
    x = _rows(tables.words.inputs, words.tokens)
    return x if tables.positions is None else x + _rows(tables.positions.inputs, words.places)


def causal(tables: Tables, history: Words, words: Words) -> tuple[Array, Words]:
    """Compute `nn.convolution.causal` for the inputs that `read` returns, from the tables.

    Args:
      tables: tables of the layer.
      history: [N, K - 1] words before `words`.
      words: [N, T].

    Returns:
      Output [N, T, D] and the history for what follows.
    """
    words, T = _within(tables, words), words.tokens.shape[1]
    tokens = jnp.concatenate([history.tokens, words.tokens], axis=1)
    places = jnp.concatenate([history.places, words.places], axis=1)
    _, K, D = tables.words.products.shape
    b = tables.bias
    total = b.astype(accumulation_dtype(b.dtype))[None, None]
    for j in range(K):
        total = total + _rows(tables.words.products.reshape(-1, D), tokens[:, j : j + T] * K + j)
        if tables.positions is not None:
            total = total + _rows(tables.positions.products.reshape(-1, D), places[:, j : j + T] * K + j)
    return total.astype(b.dtype), Words(tokens=tokens[:, T:], places=places[:, T:])


def _within(tables: Tables, words: Words) -> Words:
    """Clip ids and places to rows of the plain tables, as `nn.embedding.rows` does.

    Ids beyond the last row read the last one; negative ids count from the end. The row of zeros is for `init_cache`.
    """
    ids, places = words.tokens, words.places
    V = len(tables.words.inputs) - 1
    ids = widened(ids)
    ids = jnp.clip(jnp.where(ids < 0, ids + V, ids), 0, V - 1).astype(jnp.int32)  # that of the history
    if tables.positions is not None:
        places = jnp.minimum(places, len(tables.positions.inputs) - 2)
    return Words(tokens=ids, places=places)


def _rows(table: Array, index: Array) -> Array:
    """Read rows of a table, in float32 or better."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds").astype(accumulation_dtype(table.dtype))
