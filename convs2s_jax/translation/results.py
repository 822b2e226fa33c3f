"""Results of translation for the user: texts, token strings, scores, alignments."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from convs2s_jax.core.tokens import EOS, UNK
from convs2s_jax.data.unknown import unknown_in
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.search.translate import Candidate, Translation
from convs2s_jax.translation import alignment


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
      text: the translation, with unknown words replaced if requested.
      tokens: the model's tokens, end symbol last; empty for an empty source.
      score: ranking score in nats, normalised according to the search options.
      token_scores: the model's score of each of `tokens`, in nats.
      alignment: (source token, target token) pairs, see `alignment.pairs`; empty if not requested.
      attention: [tokens, source tokens + 1], the attention behind each of `tokens`, end symbols last; None if not
        requested.
      sampler_log_probs: of a sample, log-probability with which each of `tokens` was drawn, in nats (see
        `search.hypotheses.Hypotheses`).
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    token_scores: tuple[float, ...]
    alignment: tuple[tuple[int, int], ...] = ()
    attention: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)
    sampler_log_probs: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """A line and its translations.

    Attributes:
      line, source: its number, from 0, and its text.
      source_tokens: tokens of the source without the end symbol, including those that were truncated.
      hypotheses: at least one, best first.
      cut: number of source tokens truncated at the end because the model has no positions for them.
      reference: the reference, if there is one.
      unknown: words, pieces or characters that the vocabulary does not contain (`data.unknown`).
    """

    line: int
    source: str
    source_tokens: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    cut: int = 0
    reference: str | None = None
    unknown: tuple[str, ...] = ()

    @property
    def best(self) -> Hypothesis:
        """The hypothesis with the highest score."""
        return self.hypotheses[0]


def describe(
    vocabularies: Vocabularies,
    line: int,
    source: str,
    ids: np.ndarray,
    found: Translation,
    *,
    given: str | None = None,
    dictionary: Mapping[str, str] | None = None,
) -> Result:
    """Convert the token ids of a translation into a `Result`.

    Args:
      vocabularies: vocabularies of the model.
      line, source, ids: the line's number, from 0, its text and its token ids.
      found: its translation.
      given: text of the only candidate, if it was given and scored rather than found.
      dictionary: dictionary for replacing unknown words (see `alignment.replace_unknown`), which requires `found` to
        have attention; None to keep unknown words.
    """

    def hypothesis(candidate: Candidate) -> Hypothesis:
        tokens, drawn = [vocabularies.tgt.token(int(i)) for i in candidate.tokens], candidate.sampler_log_probs
        if len(candidate.token_scores):
            tokens.append(vocabularies.tgt.token(EOS))
        return Hypothesis(
            text=given if given is not None else text_of(vocabularies, source, candidate, dictionary),
            tokens=tuple(tokens),
            score=candidate.score,
            token_scores=tuple(float(str(score)) for score in candidate.token_scores),
            alignment=alignment.pairs(candidate.attention),
            attention=candidate.attention,
            sampler_log_probs=None if drawn is None else tuple(float(str(score)) for score in drawn),
        )

    return Result(
        line=line,
        source=source,
        source_tokens=tuple(vocabularies.src.token(int(i)) for i in ids),
        hypotheses=tuple(hypothesis(candidate) for candidate in found.candidates),
        cut=found.cut,
        unknown=unknown_in(source, ids, vocabularies.src),
    )


def text_of(
    vocabularies: Vocabularies, source: str, candidate: Candidate, dictionary: Mapping[str, str] | None = None
) -> str:
    """Return a candidate as text. With a dictionary, even an empty one, its unknown words are replaced."""
    ids = candidate.tokens.tolist()
    if dictionary is None or UNK not in ids or candidate.attention is None:
        return vocabularies.tgt.decode(ids)
    unknown = candidate.attention[:-1, :-1][candidate.tokens == UNK]
    text = vocabularies.tgt.decode(ids, unknown=alignment.UNKNOWN)
    return alignment.replace_unknown(text, unknown, vocabularies.src.surfaces(source), dictionary)
