"""A batch of sentence pairs, and the check of its values."""

from typing import Any

import jax
import numpy as np

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models.checks import check_config, check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import struct
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.trees import nodes
from convs2s_jax.nn.types import Array, Tree


@struct.dataclass
class Batch:
    """Sentence pairs.

    Attributes:
      src: [B, S] source ids with the end symbol, PAD on the right; whole rows may be PAD.
      tgt: [B, T] target ids, in the same form.
    """

    src: Array
    tgt: Array


def check_form(batch: Any) -> None:
    """Reject anything but a batch of two token arrays with the same number of rows."""
    if not (hasattr(batch, "src") and hasattr(batch, "tgt")):
        raise TypeError(f"batch is a {type(batch).__name__}: create it with convs2s_jax.Batch(src=..., tgt=...)")
    check_pairs(batch.src, batch.tgt)


def check_batch(batch: Batch, cfg: ModelConfig | None = None, params: Tree | None = None) -> None:
    """Reject sentence pairs that a loss would compute with, though its result would mean nothing.

    A compiled program cannot check values, so call this outside `jit`. `update` does, with the parameters of its state,
    for a `Batch` in the memory of the host. Sources may be padded on either side, as encoders read both alike.

    Args:
      batch: token ids.
      cfg: for the maximum lengths of both sides; None for those of position tables in `params`.
      params: of an encoder-decoder, for the sizes of the vocabularies; None to check no upper bound.

    Raises:
      ValueError: an id is not in the vocabulary, a target does not end with EOS, PAD is within a sentence or to the
        left of a target, or a sentence is longer than the positions. The message names the row.
    """
    check_form(batch)
    if cfg is not None:
        check_config(cfg, ModelConfig)
    if any(isinstance(x, jax.core.Tracer) for x in (batch.src, batch.tgt)):
        raise TypeError(
            "the batch is traced, so it has no values to check: call check_batch outside jit, grad and vmap"
        )
    for side, tokens in (("src", np.asarray(batch.src)), ("tgt", np.asarray(batch.tgt))):
        ids, longest = _limits(params, side)
        if cfg is not None:
            longest = cfg.max_source if side == "src" else cfg.max_target
        real = tokens != PAD
        read = np.cumsum(real, axis=1)
        rest = np.sum(real, axis=1, keepdims=True) - read
        for wrong, rule in (
            (tokens < 0, "ids are not negative"),
            (tokens >= ids, f"the vocabulary has the ids 0 to {ids - 1}"),
            (~real & (rest > 0) & ((side == "tgt") | (read > 0)), "PAD belongs after the sentence"),
            (real & (rest == 0) & (side == "tgt") & (tokens != EOS), f"a target ends with the end symbol {EOS}"),
            (real & (read > longest), f"a sentence has at most {longest} tokens, with its end symbol"),
        ):
            if wrong.any():
                row, column = np.argwhere(wrong)[0].tolist()
                raise ValueError(f"{side}[{row}, {column}] of the batch is {tokens[row, column]}: {rule}")


def _limits(params: Tree, side: str) -> tuple[float, float]:
    """The numbers of words and of positions, infinite where no table has them."""
    if not isinstance(params, Params):
        return np.inf, np.inf
    part = params.encoder if side == "src" else params.decoder
    for found in nodes(part, Embedding):
        table = params.decoder.embedding.table if found.table is None else found.table
        return len(table), np.inf if found.positions is None else len(found.positions) - PAD - 1
    return np.inf, np.inf


def is_readable(batch: Batch) -> bool:
    """Whether both sides are tokens, not labels, and can be read at no cost: in this host's memory, not traced."""

    def at_hand(x: Any) -> bool:
        concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        return concrete and [device.platform for device in x.devices()] == ["cpu"]

    return all((isinstance(x, np.ndarray) or at_hand(x)) and x.ndim == 2 for x in (batch.src, batch.tgt))
