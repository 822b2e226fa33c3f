"""Translations of one sentence, as arrays on the host."""

from dataclasses import dataclass

import numpy as np

from convs2s_jax.search.hypotheses import Hypotheses


@dataclass(frozen=True)
class Candidate:
    """One translation of a sentence.

    Attributes:
      tokens: token ids without the end symbol.
      score: the score by which candidates are ranked (see `SearchConfig`).
      token_scores: score of each token and of the end symbol in nats, one more than `tokens`.
      attention: [tokens + 1, S], the attention of each symbol to each source token, including end symbols; None unless
        it was requested.
    """

    tokens: np.ndarray
    score: float
    token_scores: np.ndarray
    attention: np.ndarray | None = None


@dataclass(frozen=True)
class Translation:
    """The translations of one sentence.

    Attributes:
      candidates: at least one, best first.
      cut: number of source tokens truncated at the end because the model has no positions for them.
    """

    candidates: tuple[Candidate, ...]
    cut: int = 0

    @property
    def best(self) -> Candidate:
        """The candidate with the highest score."""
        return self.candidates[0]


def without_tokens(score: float, *, attention: bool) -> Candidate:
    """Return the candidate of an empty source, with score 0, or of a sentence that cannot be scored, with -inf."""
    none = np.zeros(0, np.float32)
    return Candidate(np.zeros(0, np.int32), score, none, none.reshape(0, 0) if attention else None)


def candidates_of(
    found: Hypotheses, weights: np.ndarray | None, source_length: int, *, nbest: int | None = None
) -> tuple[Candidate, ...]:
    """Return the finished hypotheses of a sentence, best first; if there are none, an empty one with score -inf.

    Their arrays are copies, because views would keep the arrays of the whole batch in memory, padding included.

    Args:
      found: the sentence's hypotheses, [W, ...] each.
      weights: [W, T, S] their attention, or None.
      source_length: number of source tokens, including the end symbol.
      nbest: maximum number of candidates; None for all.
    """
    tokens, token_scores = np.asarray(found.tokens), np.asarray(found.token_scores)
    finished = [(w, n) for w, n in enumerate(found.lengths) if n > 0]
    candidates = [
        Candidate(
            tokens[w, : n - 1].copy(),
            float(found.scores[w]),
            token_scores[w, :n].copy(),
            None if weights is None else weights[w, :n, :source_length].copy(),
        )
        for w, n in finished[:nbest]
    ]
    return tuple(candidates) or (without_tokens(float("-inf"), attention=weights is not None),)
