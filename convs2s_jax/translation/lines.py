"""Translate and score lines of text from Python."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.nn.types import Key
from convs2s_jax.search import translate as search_of
from convs2s_jax.search.batching import DEFAULT_BATCHING, Batching
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.alignment import is_unspaced
from convs2s_jax.translation.loaded import LoadedModel
from convs2s_jax.translation.results import Result, describe

BREAK = "\u3002"
"""The ideographic full stop. Sub-words rarely extend across it into the text that follows."""


def translate(
    translator: LoadedModel,
    search: SearchConfig,
    lines: Sequence[str],
    *,
    nbest: int | None = 1,
    prefix: Sequence[str] | None = None,
    constraints: Sequence[Sequence[str]] | None = None,
    replace_unk: bool = False,
    unk_dictionary: Mapping[str, str] | None = None,
    attention: bool = True,
    key: Key | np.ndarray | None = None,
    first: int = 0,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Translate lines of text; one result per line, in order.

    Args:
      translator: the model, or an ensemble.
      search, lines, nbest, prefix, constraints, replace_unk, unk_dictionary, key, batching: as in
        `Translator.translate`, which checks them.
      attention: if false, results have no alignments, and less is copied from the device.
      first: number of the first line, for its result.
      devices, progress: as in `search.translate.translate`.

    Raises:
      ValueError: prefix or constraints differ in number from the lines, do not fit into a translation, or are given for
        an empty line.
    """
    sources = encode(translator.vocabularies.src, lines)
    tgt = translator.vocabularies.tgt
    found = search_of.translate(
        translator.params,
        translator.models,
        search,
        sources,
        prefixes=None if prefix is None else encode(tgt, prefix),
        phrases=None if constraints is None else [encode_phrases(tgt, each) for each in constraints],
        key=key,
        shortlist=translator.shortlist,
        nbest=nbest,
        attention=attention or replace_unk,
        batching=batching,
        devices=devices,
        progress=progress,
    )
    dictionary = (unk_dictionary or {}) if replace_unk else None
    return [
        describe(translator.vocabularies, first + i, line, ids, translation, dictionary=dictionary)
        for i, (line, ids, translation) in enumerate(zip(lines, sources, found, strict=True))
    ]


def score(
    translator: LoadedModel,
    search: SearchConfig,
    lines: Sequence[str],
    targets: Sequence[str],
    *,
    attention: bool = True,
    first: int = 0,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Score given translations: one hypothesis per line, with the scores that the search would report for its tokens.

    Args:
      translator, lines, attention, first, batching, devices, progress: as in `translate`.
      search: temperature, penalties and normalisation.
      targets: one translation per line. A translation longer than the model's positions has score -inf and no tokens.

    Raises:
      ValueError: the numbers of lines differ.
    """
    sources, goals = encode(translator.vocabularies.src, lines), encode(translator.vocabularies.tgt, targets)
    found = search_of.score(
        translator.params,
        translator.models,
        search,
        sources,
        goals,
        attention=attention,
        batching=batching,
        devices=devices,
        progress=progress,
    )
    return [
        describe(translator.vocabularies, first + i, line, ids, translation, given=target)
        for i, (line, ids, translation, target) in enumerate(zip(lines, sources, found, targets, strict=True))
    ]


def encode(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each text, without the end symbol."""
    return [np.asarray(ids, np.int32) for ids in vocabulary.encode(texts)]


def encode_phrases(vocabulary: Vocabulary, phrases: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each phrase as it is tokenised inside a text, without the end symbol.

    A phrase starts at the beginning of a word. If its first character is of a script written without spaces, it rarely
    follows a space, so it is tokenised without U+2581, as after a full stop.
    """
    return [
        _inside(vocabulary, phrase, ids) if len(ids) and phrase.strip() and is_unspaced(phrase.strip()[0]) else ids
        for phrase, ids in zip(phrases, encode(vocabulary, phrases), strict=True)
    ]


def _inside(vocabulary: Vocabulary, phrase: str, ids: np.ndarray) -> np.ndarray:
    """Return the ids of a phrase after a full stop; if the full stop is not a separate sub-word, return `ids`."""
    text = BREAK + phrase.strip()
    before, pieces = vocabulary.surfaces(BREAK), vocabulary.surfaces(text)
    return encode(vocabulary, [text])[0][len(before) :] if pieces[: len(before)] == before else ids
