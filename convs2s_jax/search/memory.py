"""Estimate the memory of a search, so that a beam that does not fit is refused before anything is compiled."""

import os
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.core.errors import UserError
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.batching import IN_FLIGHT, max_output_length
from convs2s_jax.search.config import SearchConfig

INDICES = 2**31
"""Continuations of a batch are indexed with 32-bit integers."""
SMALL_BEAM = 100
LONG = 10_000
"""Beams and lengths in symbols up to which the memory is not checked."""


def check_beam(
    params: tuple[Any, ...],
    cfgs: tuple[ModelConfig, ...],
    search: SearchConfig,
    *,
    vocab_size: int,
    rows: int,
) -> None:
    """Reject a beam that does not fit into memory.

    Args:
      params, cfgs: as in `generate`; shapes are enough.
      search: the search's options.
      vocab_size: V.
      rows: sentences in a batch.

    Raises:
      UserError: the beam does not fit; the message states the largest that does.
    """
    limit = max_output_length(cfgs, search, 16) + 1
    if search.beam_size <= SMALL_BEAM and limit <= LONG:
        return
    needed = bytes_per_hypothesis(params, cfgs, vocab_size=vocab_size, limit=limit)
    device = jax.local_devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit") or (  # of a CPU, that of the machine
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    # temporary arrays are assumed to take as much memory again
    most = min(int(memory) // (2 * IN_FLIGHT * rows * needed), (INDICES - 1) // (rows * vocab_size))
    if search.beam_size > most:
        enough = f"memory is enough for a beam of {most}; use a smaller beam_size or"
        if most < 1:
            enough = "memory is not enough even for a beam of 1; use a smaller"
        raise UserError(
            f"search.beam_size is {search.beam_size}: with {rows} sentences in a batch, a vocabulary of {vocab_size} "
            f"and up to {limit} symbols in a translation, {enough} max_length_b, or smaller batches"
        )


def bytes_per_hypothesis(params: tuple[Any, ...], cfgs: tuple[ModelConfig, ...], *, vocab_size: int, limit: int) -> int:
    """Return the minimum number of bytes that a search needs per live hypothesis.

    This counts the caches of all members before and after a step, the logits and scores of the next symbol, and tokens,
    parents and scores at each of `limit` positions.

    Args:
      params, cfgs: as in `generate`.
      vocab_size: V.
      limit: L, length of the results in symbols.
    """

    def caches(params: tuple[Any, ...], src: jax.Array) -> list[Any]:
        memories = (
            encoder_decoder.prepare(p, c, encoder_decoder.encode(p, c, src)) for p, c in zip(params, cfgs, strict=True)
        )
        return [encoder_decoder.init_cache(p, c, m, 1) for p, c, m in zip(params, cfgs, memories, strict=True)]

    abstract = jax.eval_shape(caches, params, jax.ShapeDtypeStruct((1, 16), jnp.int32))
    cache = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract))
    return 2 * cache + 8 * vocab_size + 20 * limit
