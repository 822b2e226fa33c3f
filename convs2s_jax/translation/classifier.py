"""Trained classifiers, loaded from their workdirs and ready to label lines of text."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from convs2s_jax.core.errors import Tell, UserError, located
from convs2s_jax.core.places import check_place
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data.unknown import unknown_in
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.classifier import ClassifierConfig, ClassifierParams
from convs2s_jax.search.batching import DEFAULT_BATCHING, Batching
from convs2s_jax.search.classify import classify
from convs2s_jax.translation import arguments, trained
from convs2s_jax.translation.lines import encode
from convs2s_jax.translation.trained import Dtype, Steps, Trained


@dataclasses.dataclass(frozen=True)
class Choice:
    """A label and its probability, from 0 to 1."""

    text: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A line and its labels.

    Attributes:
      line: its number, from 0.
      source: the text.
      labels: all labels, the most probable first.
      cut: number of tokens truncated at the end.
      unknown: words, pieces or characters that the vocabulary does not contain (`data.unknown`).
    """

    line: int
    source: str
    labels: tuple[Choice, ...]
    cut: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def best(self) -> Choice:
        """The most probable label."""
        return self.labels[0]


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A trained classifier: its configuration, merged parameters, and vocabularies of the texts and the labels."""

    model: ClassifierConfig
    params: ClassifierParams
    vocabularies: Vocabularies

    @property
    def labels(self) -> list[str]:
        """All labels, in the order of `classify`'s probabilities."""
        return [self.vocabularies.tgt.token(i) for i in range(len(SPECIAL), self.vocabularies.tgt.size)]

    def label(
        self,
        lines: Iterable[str],
        *,
        first: int = 0,
        batching: Batching = DEFAULT_BATCHING,
        progress: Callable[[int], None] | None = None,
    ) -> list[Labelled]:
        """Return the labels of lines of text, one result per line, in order; `result.best.text` is the label.

        Args:
          lines: lines of text, as in `Translator.translate`; an empty line gets labels too.
          first: number of the first line, for its result.
          batching, progress: as in `search.translate.translate`.
        """
        given, texts = arguments.texts_of("line", lines), self.vocabularies.src
        sources = encode(texts, given)
        found = classify(self.params, self.model, sources, batching=batching, progress=progress)
        names, room = self.labels, self.model.max_source - 1

        def choices(probabilities: np.ndarray) -> tuple[Choice, ...]:
            order = np.argsort(-probabilities, kind="stable")
            return tuple(Choice(names[i], float(str(probabilities[i]))) for i in order)

        return [
            Labelled(first + i, line, choices(p), max(0, len(ids) - room), unknown_in(line, ids, texts))
            for i, (line, ids, p) in enumerate(zip(given, sources, found, strict=True))
        ]


def load(
    workdir: Path | str, *, steps: Steps = (), dtype: Dtype | None = None, tell: Tell = warnings.warn
) -> Classifier:
    """Load the classifier of a workdir. Arguments and errors are those of `translator.load`, for one workdir."""
    check_place("workdir", [workdir], stores=True)
    found = trained.restore_from(workdir, steps, dtype, tell, given_as="workdir")
    with located(f"workdir={workdir}"):
        return from_trained(found)


def from_trained(found: Trained) -> Classifier:
    """Return a trained model as a classifier. Raises UserError for a model of another kind."""
    if not isinstance(found.cfg.model, ClassifierConfig):
        raise UserError(
            f"model.kind is '{found.cfg.model.kind}', which does not predict labels; use a run of a classifier"
        )
    return Classifier(found.cfg.model, found.params, found.vocabularies)
