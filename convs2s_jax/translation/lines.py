"""A trained model in memory, what it is asked to do with lines of text, and its answers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.types import Key
from convs2s_jax.search import translate as search_of
from convs2s_jax.search.batching import DEFAULT_BATCHING, Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.search.strategies import Strategy
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import Known
from convs2s_jax.translation.alignment import is_unspaced
from convs2s_jax.translation.results import Result, describe

BREAK = "\u3002"
"""The ideographic full stop. Sub-words rarely extend across it into the text that follows."""


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model for decoding, or an ensemble of several.

    Attributes:
      cfg: configuration of the run; for an ensemble, of the first member, whose search options and corpus are used.
      models: the model configuration, or a tuple with one per member; a language model (`fuse`) comes last.
      params: merged parameters, or a tuple with those of each model.
      vocabularies: vocabularies shared by all members.
      steps: for each member, the steps of the checkpoints that its parameters are averaged from.
      fingerprints: digest of each member, the language model last (`Trained.fingerprint`).
      splits: as in `Trained`; for an ensemble, those of the first member.
      shortlist: words that translations may use (`translation.shortlists`); None for all words.
    """

    cfg: Config
    models: ModelConfig | tuple[ModelConfig, ...]
    params: Params | tuple[Params, ...]
    vocabularies: Vocabularies
    steps: tuple[tuple[int, ...], ...]
    fingerprints: tuple[str, ...] = ()
    splits: Mapping[str, Known] = dataclasses.field(default_factory=dict)
    shortlist: Shortlist | None = None

    @property
    def max_source(self) -> int:
        """Maximum source length in tokens that every member has positions for, including the end symbol."""
        return min(model.max_source for model in self.members)

    @property
    def max_target(self) -> int:
        """Maximum target length in tokens that every member has positions for, including the end symbol."""
        return min(model.max_target for model in self.members)

    @property
    def reads_source(self) -> bool:
        """Whether the model reads a source. If not, it is a language model."""
        return any(model.reads_source for model in self.members)

    @property
    def attends(self) -> bool:
        """Whether every member that reads a source has attention weights over its tokens."""
        return self.reads_source and all(model.attends for model in self.members if model.reads_source)

    @property
    def members(self) -> tuple[ModelConfig, ...]:
        """The model configurations, one per member."""
        return self.models if isinstance(self.models, tuple) else (self.models,)

    @property
    def member_params(self) -> tuple[Params, ...]:
        """The parameters, one tree per member."""
        return self.params if isinstance(self.params, tuple) else (self.params,)


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """Lines of text to translate, or pairs to score.

    Attributes:
      search: options of the search.
      lines: lines of text; an empty line has an empty translation, except with a language model, which reads no source.
      targets: given translations, one per line, to score instead of a search, with the scores that the search would
        report for their tokens. One longer than the model's positions has score -inf and no tokens.
      nbest: hypotheses per result, at most `search.beam_size`; None for all. The best one does not depend on it.
      prefix: for each line, words that its translation must begin with; "" for none.
      constraints: for each line, phrases that its translation must contain, in any order.
      replace_unk: replace unknown target words with source words.
      unk_dictionary: source word -> target word, for these replacements.
      attention: if false, results have no alignments, and less is copied from the device.
      key: for sampling, a single random key, into which the index of each line is folded, or one key per line.
      strategy: how candidates are chosen and when a line is done, instead of what `search` selects.
      batching: how lines are batched.
      first: number of the first line, for its result.
    """

    search: SearchConfig
    lines: Sequence[str]
    targets: Sequence[str] | None = None
    nbest: int | None = 1
    prefix: Sequence[str] | None = None
    constraints: Sequence[Sequence[str]] | None = None
    replace_unk: bool = False
    unk_dictionary: Mapping[str, str] | None = None
    attention: bool = True
    key: Key | np.ndarray | None = None
    strategy: Strategy | None = None
    batching: Batching = DEFAULT_BATCHING
    first: int = 0


def translate(
    model: LoadedModel,
    request: TextRequest,
    *,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Translate lines of text, or score given translations; one result per line, in order.

    Args:
      model: the model, or an ensemble.
      request: what to do; `arguments` and `search.translate` check it.
      devices, progress: as in `search.translate.translate`.
    """
    tgt = model.vocabularies.tgt
    sources = encode(model.vocabularies.src, request.lines)
    given = (model.params, model.models, request.search, sources)
    more: Any = {"batching": request.batching, "devices": devices, "progress": progress}
    if request.targets is not None:
        found = search_of.score(*given, encode(tgt, request.targets), attention=request.attention, **more)
    else:
        wanted = request.constraints
        found = search_of.translate(
            *given,
            prefixes=None if request.prefix is None else encode(tgt, request.prefix),
            phrases=None if wanted is None else [encode_phrases(tgt, each) for each in wanted],
            key=request.key,
            shortlist=model.shortlist,
            strategy=request.strategy,
            nbest=request.nbest,
            attention=request.attention or request.replace_unk,
            **more,
        )
    dictionary = (request.unk_dictionary or {}) if request.replace_unk else None
    targets: Sequence[str | None] = request.targets or [None] * len(sources)
    rows = zip(request.lines, sources, found, targets, strict=True)
    return [
        describe(model.vocabularies, request.first + i, line, ids, translation, given=target, dictionary=dictionary)
        for i, (line, ids, translation, target) in enumerate(rows)
    ]


def encode(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each text, without the end symbol."""
    return [np.asarray(ids, np.int32) for ids in vocabulary.encode(texts)]


def encode_phrases(vocabulary: Vocabulary, phrases: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each phrase as it is tokenised inside a text, without the end symbol.

    A phrase starts at the beginning of a word. If its first character is of a script written without spaces, it rarely
    follows a space, so it is tokenised without U+2581, as after a full stop.
    """
    phrases = [vocabulary.read(phrase).strip() for phrase in phrases]
    return [
        _inside(vocabulary, phrase, ids) if len(ids) and is_unspaced(phrase[0]) else ids
        for phrase, ids in zip(phrases, encode(vocabulary, phrases), strict=True)
    ]


def _inside(vocabulary: Vocabulary, phrase: str, ids: np.ndarray) -> np.ndarray:
    """Return the ids of a phrase after a full stop; if the full stop is not a separate sub-word, return `ids`."""
    text = BREAK + phrase
    before, pieces = vocabulary.surfaces(BREAK), vocabulary.surfaces(text)
    return encode(vocabulary, [text])[0][len(before) :] if pieces[: len(before)] == before else ids
