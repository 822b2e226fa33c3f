"""The numbers of a search: traced, so that another value compiles nothing and can be mapped or differentiated."""

import flax.struct
import numpy as np
from jax import Array

from convs2s_jax.search.config import SearchConfig

Scalar = Array | np.float32 | np.int32


@flax.struct.dataclass
class Numbers:
    """The traced part of a search's options, scalars; their meanings are those of `SearchConfig`.

    `Structure` says which of them are read at all.

    Attributes:
      length_penalty: the exponent of the length.
      coverage_penalty: weight of the attention that source positions lack.
      temperature: logits are divided by it.
      unk_penalty: nats taken from each unknown symbol.
      lm_weight: weight of the language model's log-probability.
      diverse_strength: nats for each time a token was chosen by the groups before.
      top_p: probability of the symbols that samples are drawn from.
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
