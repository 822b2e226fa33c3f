"""The options of a search: length bounds, ranking, stopping, sampling, constraints."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from convs2s_jax.core.config import check, record

Stop = Literal["exact", "fairseq"]
LengthPenaltyKind = Literal["power", "gnmt"]
SCORING = MappingProxyType({"scoring": True})
"""Metadata of fields that affect the score of a given translation; the others only affect the search."""
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "beam_size": (1, 10_000),
        "length_penalty": (-10, 10),
        "coverage_penalty": (0, 1e6),
        "min_length": (0, 1e6),
        "max_length_a": (0, 1e6),
        "max_length_b": (-1e6, 1e6),
        "temperature": (1e-6, 1e6),
        "unk_penalty": (-1e6, 1e6),
        "no_repeat_ngram": (0, 1e6),
        "top_k": (0, 2**31 - 1),
        "lm_weight": (0, 1e6),
    }
)
"""Minimum and maximum of fields; within them, l(L) is finite in float32 for 7,000 symbols."""


@record
class SearchConfig:
    """Options of beam search and sampling; a beam of 1 with stop="fairseq" is greedy search.

    A hypothesis of L symbols, including the end symbol, scores  log P / l(L) + coverage_penalty * c.  log P is the sum
    of its log-probabilities. l(L) is L ** length_penalty (section 4.3 of Gehring et al.) or, for "gnmt",
    ((5 + L) / 6) ** length_penalty (equation 14 of Wu et al. 2016). c is the sum over source positions, including the
    end symbol, of  log min(attention received, 1)  (the same equation); it is at most 0. In place of an attention of 0
    it counts the smallest normal number, -87.3 nats in float32, so that scores are finite.

    Lengths are bounded by the length S of the sentence's own source, including its end symbol; fairseq uses the padded
    length of the batch, and 200 by default. Under the exact rule, a larger bound keeps the search running longer,
    because a live hypothesis that may still grow to L symbols may still reach a score of cumulative / l(L).

    Attributes:
      beam_size: W, number of hypotheses kept alive and returned for each sentence.
      length_penalty: alpha, the exponent of the length that scores are divided by; values above 1 favour longer
        hypotheses, values below 1 shorter ones.
      length_penalty_kind: power divides by L ** alpha, gnmt by ((5 + L) / 6) ** alpha; L includes the end symbol.
      normalize: divide scores by the length; otherwise hypotheses are ranked by the plain sum and length_penalty is
        ignored.
      coverage_penalty: beta, the weight of the coverage term c (GNMT, equation 14), which lowers the score of a
        hypothesis that leaves source positions with little attention. It ranks finished hypotheses only.
      min_length: minimum number of tokens before the end symbol. If it exceeds the maximum length, that length is used.
      max_length_a: a hypothesis has at most max_length_a * S + max_length_b tokens, where S is the source length, but
        always room for one.
      max_length_b: the constant of that bound; it may be negative.
      temperature: logits are divided by it; values above 1 flatten the distribution.
      unk_penalty: nats subtracted for each unknown symbol; a negative value is a reward.
      stop: exact stops a sentence when no live hypothesis can still become one of the W best finished ones; fairseq
        stops it when W have finished, even if better ones could follow.
      no_repeat_ngram: n-grams of this size never occur twice in a hypothesis; 0 disables this.
      sampling: sample beam_size translations of each sentence instead of searching for the best. convs2s decode samples
        --nbest of them, unless --beam_size is given.
      top_k: sample from the k most probable symbols only; 0 for all.
      top_p: sample from the fewest symbols whose probabilities add up to p (nucleus, Holtzman et al. 2020).
      lm_weight: lambda of shallow fusion (Gulcehre et al. 2015): each symbol scores  log p(y|x) + lambda log p_lm(y),
        where p_lm is from a separate language model; 0 for none.
    """

    RETIRED: ClassVar = MappingProxyType({"diverse_groups": 1, "diverse_strength": ...})

    beam_size: int = 5
    length_penalty: float = dataclasses.field(default=1.0, metadata=SCORING)
    length_penalty_kind: LengthPenaltyKind = dataclasses.field(default="power", metadata=SCORING)
    normalize: bool = dataclasses.field(default=True, metadata=SCORING)
    coverage_penalty: float = dataclasses.field(default=0.0, metadata=SCORING)
    min_length: int = 1
    max_length_a: float = 2.0
    max_length_b: int = 10
    temperature: float = dataclasses.field(default=1.0, metadata=SCORING)
    unk_penalty: float = dataclasses.field(default=0.0, metadata=SCORING)
    stop: Stop = "exact"
    no_repeat_ngram: int = 0
    sampling: bool = False
    top_k: int = 0
    top_p: float = 1.0
    lm_weight: float = dataclasses.field(default=0.0, metadata=SCORING)

    def __post_init__(self) -> None:
        """Reject values that no search can use."""
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            check(low <= value <= high, f"{name} is {value}: use a value between {low:g} and {high:g}")
        check(0 < self.top_p <= 1, f"top_p is {self.top_p}: use a probability above 0 and at most 1 (all symbols)")
        check(
            self.max_length_a > 0 or self.max_length_b > 0,
            f"max_length_a is 0 and max_length_b is {self.max_length_b}: every translation would be empty; raise one "
            "of them",
        )
        for name, value, off in (("top_k", self.top_k, 0), ("top_p", self.top_p, 1.0)):
            check(
                self.sampling or value == off,
                f"{name} is {value} without sampling, which it restricts: set sampling, or leave {name} out",
            )

    def max_length(self, source_length: int) -> int:
        """Return the maximum number of tokens before the end symbol; `source_length` includes the end symbol."""
        return max(1, int(self.max_length_a * source_length + self.max_length_b))
