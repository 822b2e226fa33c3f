"""Results of lines for the user: texts, token strings, scores, alignments."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from convs2s_jax.core.tokens import EOS, UNK
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.search.translate import Candidate, Translation
from convs2s_jax.translation import alignment


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
      text: with unknown words replaced, where that was asked for.
      tokens: as the model made them, the end symbol last; none where the source is empty.
      score: what hypotheses are ranked by; nats, normalised as the search was asked to.
      token_scores: nats, as many as `tokens`.
      alignment: (source token, target token) pairs, see `alignment.pairs`; empty where none was asked for.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    token_scores: tuple[float, ...]
    alignment: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """A line and its translations.

    Attributes:
      line: its number, from 0.
      source: the text.
      source_tokens: without the end symbol; those that were cut off are there too.
      hypotheses: one at least, best first.
      cut: source tokens at the end that the model had no positions for.
      reference: where there is one.
    """

    line: int
    source: str
    source_tokens: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    cut: int = 0
    reference: str | None = None

    @property
    def best(self) -> Hypothesis:
        """The hypothesis of the highest score."""
        return self.hypotheses[0]


def describe(
    vocabularies: Vocabularies,
    line: int,
    source: str,
    ids: np.ndarray,
    found: Translation,
    *,
    nbest: int = 1,
    given: str | None = None,
    dictionary: Mapping[str, str] | None = None,
) -> Result:
    """Put a translation into words.

    Args:
      vocabularies: of the model.
      line: number, from 0.
      source: text of the line.
      ids: its tokens.
      found: its translation.
      nbest: most hypotheses.
      given: text of the only candidate, where that was not found but scored.
      dictionary: replaces unknown words (see `alignment.replace_unknown`); None leaves them. The translation carries
        attention then.
    """

    def hypothesis(candidate: Candidate) -> Hypothesis:
        tokens = [vocabularies.tgt.token(int(i)) for i in candidate.tokens]
        if len(candidate.token_scores):
            tokens.append(vocabularies.tgt.token(EOS))
        return Hypothesis(
            text=given if given is not None else text_of(vocabularies, source, candidate, dictionary),
            tokens=tuple(tokens),
            score=candidate.score,
            token_scores=tuple(float(str(score)) for score in candidate.token_scores),
            alignment=alignment.pairs(candidate.attention),
        )

    return Result(
        line=line,
        source=source,
        source_tokens=tuple(vocabularies.src.token(int(i)) for i in ids),
        hypotheses=tuple(hypothesis(candidate) for candidate in found.candidates[:nbest]),
        cut=found.cut,
    )


def text_of(
    vocabularies: Vocabularies, source: str, candidate: Candidate, dictionary: Mapping[str, str] | None = None
) -> str:
    """A candidate as text; with a dictionary, be it empty, its unknown words are replaced."""
    ids = candidate.tokens.tolist()
    if dictionary is None or UNK not in ids or candidate.attention is None:
        return vocabularies.tgt.decode(ids)
    unknown = candidate.attention[:-1, :-1][candidate.tokens == UNK]
    text = vocabularies.tgt.decode(ids, unknown=alignment.UNKNOWN)
    return alignment.replace_unknown(text, unknown, vocabularies.src.surfaces(source), dictionary)
