"""The static options of a search. A new value recompiles. All other options are `Numbers`."""

from dataclasses import dataclass
from typing import Literal

from convs2s_jax.search.config import SearchConfig, Stop

LengthPenalty = Literal["none", "power", "gnmt"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The static part of a search's options; hashable.

    Attributes:
      beam_size: W, number of hypotheses kept alive and returned for each sentence, over all groups.
      groups: G, number of groups of hypotheses.
      stop: as in `SearchConfig`.
      length_penalty: what cumulative scores are divided by: nothing, a power of the length, or equation 14 of Wu et al.
        2016.
      coverage: whether a coverage penalty is added to the scores.
      language_model: whether the step also returns the logits of a language model.
      no_repeat_ngram: n-grams of this size never occur twice; 0 disables this.
      top_k: samples are drawn from the k most probable symbols; 0 for all.
      nucleus: whether samples are drawn from the most probable symbols, up to a total probability of `Numbers.top_p`.
    """

    beam_size: int
    groups: int = 1
    stop: Stop = "exact"
    length_penalty: LengthPenalty = "power"
    coverage: bool = False
    language_model: bool = False
    no_repeat_ngram: int = 0
    top_k: int = 0
    nucleus: bool = False

    @property
    def group_size(self) -> int:
        """H, number of hypotheses kept alive in each group."""
        return self.beam_size // self.groups


def structure_of(cfg: SearchConfig) -> Structure:
    """Return the static part of a `SearchConfig`."""
    return Structure(
        beam_size=cfg.beam_size,
        groups=cfg.diverse_groups,
        stop=cfg.stop,
        length_penalty=cfg.length_penalty_kind if cfg.normalize else "none",
        coverage=cfg.coverage_penalty > 0,
        language_model=cfg.lm_weight > 0,
        no_repeat_ngram=cfg.no_repeat_ngram,
        top_k=cfg.top_k,
        nucleus=cfg.top_p < 1,
    )
