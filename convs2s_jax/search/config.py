"""What a search may produce, how it ranks that, and when it stops."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from convs2s_jax.core.config import check

Stop = Literal["exact", "fairseq"]


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Options of beam search; a beam of 1 with stop="fairseq" is greedy search.

    A hypothesis of L symbols, the end symbol counted, scores  sum of its log-probabilities / L ** length_penalty.

    The longest allowed hypothesis has  max_length_a * S + max_length_b  tokens before the end symbol, where S is the
    length of the sentence's own source, its end symbol counted (fairseq takes the padded length of the batch, so that
    there a translation depends on its batch mates). fairseq's bound of 200 would be a bad one here: while a live
    hypothesis may still grow to L symbols, its score may still rise to cumulative / L ** length_penalty, so the exact
    stopping rule searches the longer the larger the bound. Twice the source and ten is longer than translations are.

    Attributes:
      beam_size: W, hypotheses kept alive and returned for each sentence.
      length_penalty: the exponent; above 1 favours longer, below 1 shorter hypotheses.
      normalize: False ranks by the plain sum and ignores length_penalty.
      min_length: fewest tokens before the end symbol. Where it exceeds the longest allowed, that one counts.
      max_length_a: tokens for each source token.
      max_length_b: tokens besides.
      temperature: logits are divided by it; above 1 flattens the distribution.
      unk_penalty: nats taken from each unknown symbol; a negative one is a reward.
      stop: "exact" ends a sentence when no live hypothesis can still enter the W best finished ones; "fairseq" when W
        have finished, so that better ones coming later are never seen.
    """

    beam_size: int = 5
    length_penalty: float = 1.0
    normalize: bool = True
    min_length: int = 1
    max_length_a: float = 2.0
    max_length_b: int = 10
    temperature: float = 1.0
    unk_penalty: float = 0.0
    stop: Stop = "exact"

    def __post_init__(self) -> None:
        """Refuse values no search can run with."""
        check(
            self.beam_size >= 1,
            f"beam_size is {self.beam_size}: a search keeps at least one hypothesis; use 1 (greedy) or more",
        )
        for name in ("length_penalty", "unk_penalty"):
            value = getattr(self, name)
            check(math.isfinite(value), f"{name} is {value}: scores would be no numbers; use a finite value such as 0")
        check(
            math.isfinite(self.temperature) and self.temperature > 0,
            f"temperature is {self.temperature}: logits are divided by it; use a value above 0 (1 changes nothing)",
        )
        check(
            self.min_length >= 0,
            f"min_length is {self.min_length}: no hypothesis has fewer than 0 tokens; use 0 or more",
        )
        check(
            math.isfinite(self.max_length_a) and self.max_length_a >= 0,
            f"max_length_a is {self.max_length_a}: tokens for each source token; use 0 (no dependence) or more",
        )
        check(
            self.max_length_b >= 0,
            f"max_length_b is {self.max_length_b}: tokens besides max_length_a * source; use 0 or more",
        )
        check(
            self.max_length_a > 0 or self.max_length_b > 0,
            "max_length_a and max_length_b are both 0: every translation would be empty; raise one of them",
        )
        known = get_args(Stop)
        check(self.stop in known, f"stop is {self.stop!r}: there are {', '.join(known)}")

    @property
    def exponent(self) -> float:
        """The power of the length that scores are divided by: length_penalty, or 0 where nothing is normalised."""
        return self.length_penalty if self.normalize else 0.0

    def max_length(self, source_length: int) -> int:
        """Most tokens before the end symbol, for a source of `source_length` tokens, its end symbol counted."""
        return int(self.max_length_a * source_length + self.max_length_b)
