"""What the ConvS2S decoder prepares for token-by-token decoding, so that each step has less to do (`convs2s.advance`).

    once for a model     products of the first convolution with every word and position (`init_tables`)
    once for a sentence  the source, mapped for the attention of each layer (`project_source`)

Results are equal up to rounding. The input of the first convolution is linear in the embedding, x = (w + p) W + b, and
so are the products of its taps:

    y_t = b' + sum_j x_{t-K+1+j} w'_j = b' + sum_j (word_j[token_{t-K+1+j}] + position_j[place_{t-K+1+j}])
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import Affine, add_bias, linear
from convs2s_jax.nn.attention import MultiStepAttention, queries, scaled_context
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.types import SQRT_HALF, Array, accumulation_dtype

MOST_BYTES = 2**27
"""Maximum size of the tables in bytes. Larger ones are not built, and the first layer is computed at each step."""


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
    """The tables of a first layer: of words, of positions if there are any, and the bias [D] of the convolution."""

    words: Table
    positions: Table | None
    bias: Array


@struct.dataclass
class Words:
    """Token ids [N, T] of N hypotheses, and the rows of their positions [N, T] (`nn.embedding.position_rows`)."""

    tokens: Array
    places: Array


def precompute(params: Any, cfg: Any) -> Any:
    """Build the tables of the first layer, and let `convs2s.prepare` map the source for the attention of each layer.

    There are no tables if the convolution depends on its input (dynamic) or has a dilation, or if they are too large.

    The arguments are `convs2s.ConvDecoderParams` and `convs2s.ConvDecoderConfig`.
    """
    conv = cfg.convolution.functions.dense(params.blocks[0].conv, cfg.convolution.at(0))
    tables = None if conv is None else init_tables(params.embedding, params.map_in, conv)
    return dataclasses.replace(params, tables=tables, maps_source=True)


def for_one_hypothesis(params: Any) -> Any:
    """Adapt precomputed parameters to a search with one hypothesis per sentence, which does not map the source.

    A target is about as long as its source, so the maps cost the same on either side, and without mapping, all layers
    read the same keys and values.
    """
    return dataclasses.replace(params, maps_source=False)


def map_source(params: Any, memory: Memory) -> Memory:
    """Map the source for the attention of each layer, once for all steps and hypotheses.

    The keys of the result are `scaled_keys`, its values a `ProjectedSource` or None for each layer.
    """
    maps = [block.attention for block in params.blocks]
    first = next((m for m in maps if m is not None), None)
    if first is None:
        return memory
    z = scaled_keys(first, memory.keys)
    sources = tuple(None if m is None else project_source(m, z, memory.values) for m in maps)
    return dataclasses.replace(memory, keys=z, values=sources, prepared=True)


def init_tables(embedding: Embedding, map_in: Affine, conv: Affine) -> Tables | None:
    """Build the tables of an embedding, the map [E -> C] after it and a convolution w [K, C, D].

    None if they were larger than `MOST_BYTES`.
    """
    count = sum(len(rows) + 1 for rows in (embedding.table, embedding.positions) if rows is not None)
    width, inputs, outputs = conv.w.shape
    if count * (inputs + width * outputs) * conv.w.dtype.itemsize > MOST_BYTES:
        return None

    def table(x: Array) -> Table:
        x = jnp.concatenate([x, jnp.zeros_like(x[:1])])
        return Table(inputs=x, products=jnp.einsum("VC,KCD->VKD", x, conv.w))

    own = embedding.positions
    positions = None if own is None else table(own.astype(map_in.w.dtype) @ map_in.w)
    return Tables(words=table(linear(map_in, embedding.table)), positions=positions, bias=conv.b)


def no_words(tables: Tables, rows: int) -> Words:
    """Create the history before the first word: K - 1 words for each of N rows."""
    shape = (rows, tables.words.products.shape[1] - 1)
    before = [0 if table is None else len(table.inputs) - 1 for table in (tables.words, tables.positions)]
    return Words(*(jnp.full(shape, row, jnp.int32) for row in before))


def read(tables: Tables, words: Words) -> Array:
    """Look up the input of the first convolution, [N, T, C]."""
    words = _within(tables, words)
    x = _rows(tables.words.inputs, words.tokens)
    return x if tables.positions is None else x + _rows(tables.positions.inputs, words.places)


def convolve(tables: Tables, history: Words, words: Words) -> tuple[Array, Words]:
    """Compute `nn.convolution.causal` for the inputs that `read` returns, [N, T, D], and the history for what follows.

    The history has the K - 1 words before `words`.
    """
    words, T = _within(tables, words), words.tokens.shape[1]
    read = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), history, words)
    _, K, D = tables.words.products.shape
    b = tables.bias
    total = b.astype(accumulation_dtype(b.dtype))[None, None]
    for j in range(K):
        total = total + _rows(tables.words.products.reshape(-1, D), read.tokens[:, j : j + T] * K + j)
        if tables.positions is not None:
            total = total + _rows(tables.positions.products.reshape(-1, D), read.places[:, j : j + T] * K + j)
    return total.astype(b.dtype), jax.tree.map(lambda x: x[:, T:], read)


def _within(tables: Tables, words: Words) -> Words:
    """Clip ids and places to rows of the plain tables, as `nn.embedding.rows` does; negative ids count from the end."""
    ids, places = words.tokens.astype(jnp.int32), words.places
    V = len(tables.words.inputs) - 1
    ids = jnp.clip(jnp.where(ids < 0, ids + V, ids), 0, V - 1)
    if tables.positions is not None:
        places = jnp.minimum(places, len(tables.positions.inputs) - 2)
    return Words(tokens=ids, places=places)


def _rows(table: Array, index: Array) -> Array:
    """Read rows of a table, in float32 or better."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds").astype(accumulation_dtype(table.dtype))


@struct.dataclass
class ProjectedSource:
    """A source for `attend`: scores  h . keys_j + g . z_j + offset_j,  context  sum_j a_j values_j.

    Source positions are the last axis of keys and z, so that a decoding step reads them in memory order.

    Attributes:
      keys: [B, C, S].
      offset: [B, S].
      values: [B, S, C].
    """

    keys: Array
    offset: Array
    values: Array


def scaled_keys(params: MultiStepAttention, keys: Array) -> Array:
    """Return z * sqrt(0.5), transposed from [B, S, E] to [B, E, S], in the dtype of the maps. All layers share it."""
    return jnp.swapaxes(keys, 1, 2).astype(params.query.w.dtype) * SQRT_HALF


def project_source(params: MultiStepAttention, z: Array, values: Array) -> ProjectedSource:
    """Apply the maps of equations 1 and 2 to the source instead of the target.

    (W_d h + b_d + g) . z = h . W_d^T z + g . z + b_d . z  and  W_c sum_j a_j v_j = sum_j a_j (W_c v_j). So a sentence
    needs S products of C * E instead of W * T. z [B, E, S] is that of `scaled_keys`, values are [B, S, E].
    """
    w, b = params.query.w, params.query.b
    mapped_keys = jnp.einsum("CE,BES->BCS", w, z)
    offset = jnp.einsum("E,BES->BS", b.astype(w.dtype), z, preferred_element_type=accumulation_dtype(w.dtype))
    mapped_values = jnp.einsum("BSE,EC->BSC", values.astype(w.dtype), params.context.w)
    return ProjectedSource(keys=mapped_keys, offset=offset, values=mapped_values)


def attend(
    params: MultiStepAttention, h: Array, g: Array, z: Array, source: ProjectedSource, mask: Array
) -> tuple[Array, Array]:
    """Like `nn.attention.attend`, with z from `scaled_keys` and a source from `project_source`."""
    dtype = accumulation_dtype(h.dtype)
    scores_BQS = jnp.einsum("BQC,BCS->BQS", queries(h, mask), source.keys, preferred_element_type=dtype)
    scores_BQS += jnp.einsum("BQE,BES->BQS", queries(g, mask), z, preferred_element_type=dtype)
    c, a = scaled_context(scores_BQS + source.offset[:, None], source.values, mask)
    return (add_bias(c.reshape(h.shape), params.context.b) + h) * SQRT_HALF, a.reshape(*h.shape[:2], -1)
