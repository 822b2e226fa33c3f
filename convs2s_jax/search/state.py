"""The state of a search between two steps, and how a batch of sentences is reduced to a smaller one.

A batch has B sentences with a beam of W each, in G groups of H = W // G hypotheses (G = 1 except in diverse search);
the search has R = B * G rows. The network sees N = R * H = B * W rows, with those of a sentence adjacent.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from convs2s_jax.nn import struct
from convs2s_jax.search.finished import Finished, empty_finished
from convs2s_jax.search.hypotheses import Trail
from convs2s_jax.search.request import Request
from convs2s_jax.search.strategies.base import State, Strategy
from convs2s_jax.search.structure import Structure

StepMemory = Any
"""A pytree whose leaves have the B sentences on axis 0: the constant inputs of a step."""
StepCache = Any
"""A pytree whose leaves have the N rows on axis 0."""


@struct.dataclass
class Beams:
    """The state between two steps.

    Attributes:
      step: [], number of tokens that live hypotheses have.
      last: [R, H], the last symbol of each hypothesis.
      totals: [R, H], cumulative scores; -inf for hypotheses that may not be continued.
      cache: [N, ...], the network's cache.
      finished: [R, H], the best finished hypotheses.
      history: [R, H, L], tokens so far; L = 0 if no rule needs them.
      state: [R, H, ...], the strategy's state.
    """

    step: Array
    last: Array
    totals: Array
    cache: StepCache
    finished: Finished
    history: Array
    state: State


@struct.dataclass
class SearchBatch:
    """Sentences that are searched together.

    Attributes:
      indices: [B], their indices among all sentences.
      memory: [B, ...], constant inputs of the network's step.
      request: [R, ...], their requests.
      beams: the state of their search.
      trail: [steps, R, H], the choices of each step.
    """

    indices: Array
    memory: StepMemory
    request: Request
    beams: Beams
    trail: Trail


def alive(batch: SearchBatch) -> Array:
    """Return which sentences have a live hypothesis, [B]."""
    return jnp.any(batch.beams.totals.reshape(batch.indices.shape[0], -1) > -jnp.inf, axis=-1)


def compact(batch: SearchBatch, size: int) -> SearchBatch:
    """Reduce a batch to `size` sentences: all live ones, filled up with finished ones."""
    B = batch.indices.shape[0]
    keep = jnp.argsort(~alive(batch), stable=True)[:size]

    def take(x: Array, axis: int = 0) -> Array:
        if x.ndim <= axis:
            return x  # the step
        each = x.shape[axis] // B
        parts = x.reshape(*x.shape[:axis], B, each, *x.shape[axis + 1 :])
        return jnp.take(parts, keep, axis=axis).reshape(*x.shape[:axis], size * each, *x.shape[axis + 1 :])

    trail = jax.tree.map(lambda x: take(x, 1), batch.trail)
    rest = (batch.indices, batch.memory, batch.request, batch.beams)
    indices, memory, request, beams = jax.tree.map(take, rest)
    return SearchBatch(indices, memory, request, beams, trail)


def begin(
    strategy: Strategy,
    structure: Structure,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    limit: int,
    chunk: int,
    start: int,
) -> SearchBatch:
    """Return the state before the first step. If hypotheses start equal, only the first of each group is continued."""
    B, H, G = request.max_lengths.shape[0], structure.group_size, structure.groups
    request = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), request)
    longest = jnp.clip(request.max_lengths, 0, limit - 1).astype(jnp.int32)
    request = replace(request, max_lengths=longest)
    R = B * G
    totals = jnp.full((R, H), -jnp.inf, jnp.float32).at[:, : 1 if strategy.starts_as_one else H].set(0.0)
    steps = limit + chunk  # whole chunks, whatever step they begin at
    beams = Beams(
        step=jnp.int32(0),
        last=jnp.full((R, H), start, jnp.int32),
        totals=totals,
        cache=cache,
        finished=empty_finished(R, H),
        history=jnp.zeros((R, H, steps if structure.no_repeat_ngram else 0), jnp.int32),
        state=strategy.start(request, H),
    )
    shape = (steps, R, H)
    trail = Trail(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    return SearchBatch(jnp.arange(B, dtype=jnp.int32), memory, request, beams, trail)


def reorder(cache: StepCache, parents: Array, width: int) -> StepCache:
    """Give each live hypothesis [R, H] the cache of its parent, one of the `width` hypotheses of its group."""
    R, H = parents.shape
    if H == 1 and width == 1:
        return cache
    rows = (jnp.arange(R, dtype=jnp.int32)[:, None] * width + parents).reshape(R * H)
    return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), cache)
