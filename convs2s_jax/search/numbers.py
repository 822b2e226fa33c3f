"""The traced options of a search: a new value does not recompile, and they can be mapped and differentiated."""

import numpy as np
from jax import Array

from convs2s_jax.nn import struct
from convs2s_jax.search.config import SearchConfig

Scalar = Array | np.float32 | np.int32


@struct.dataclass
class Numbers:
    """The traced part of a search's options, scalars; their meanings are those of `SearchConfig`.

    `Structure` says which of them are read at all.

    Attributes:
      length_penalty: the exponent of the length.
      coverage_penalty: weight of the coverage term in the scores.
      temperature: logits are divided by it.
      unk_penalty: nats subtracted for each unknown symbol.
      lm_weight: weight of the language model's log-probability.
      diverse_strength: penalty in nats for each time that an earlier group chose a token.
      top_p: total probability of the symbols that samples are drawn from.
      min_length: int32, fewest tokens before the end symbol.
    """

    length_penalty: Scalar
    coverage_penalty: Scalar
    temperature: Scalar
    unk_penalty: Scalar
    lm_weight: Scalar
    diverse_strength: Scalar
    top_p: Scalar
    min_length: Scalar


def numbers_of(cfg: SearchConfig) -> Numbers:
    """The traced part of a user's options."""
    return Numbers(
        length_penalty=np.float32(cfg.length_penalty),
        coverage_penalty=np.float32(cfg.coverage_penalty),
        temperature=np.float32(cfg.temperature),
        unk_penalty=np.float32(cfg.unk_penalty),
        lm_weight=np.float32(cfg.lm_weight),
        diverse_strength=np.float32(cfg.diverse_strength),
        top_p=np.float32(cfg.top_p),
        min_length=np.int32(cfg.min_length),
    )
