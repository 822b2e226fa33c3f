"""Translating sentences: batching, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.rows import Tokens, pad_rows
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params, PrecomputedParams
from convs2s_jax.models.table import FAST_DECODERS
from convs2s_jax.nn.types import Key
from convs2s_jax.search import keys
from convs2s_jax.search.buckets import DEFAULT_BATCHING, Batching, Bucket, at_least, batches
from convs2s_jax.search.candidates import NOTHING, UNSCORED, Translation, candidates_of
from convs2s_jax.search.checks import (
    ModelConfigs,
    Models,
    check_required,
    check_untraced,
    checked_sources,
    members_of,
    target_size,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force, generate
from convs2s_jax.search.numbers import numbers_of
from convs2s_jax.search.request import as_ids, check_ids, check_required_ids, request, sizes
from convs2s_jax.search.shortlist import Shortlist, wishes_of
from convs2s_jax.search.spread import placed, put, spread
from convs2s_jax.search.strategies.table import strategy_of
from convs2s_jax.search.structure import structure_of


def translate(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[np.ndarray],
    *,
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    key: Key | np.ndarray | None = None,
    shortlist: Shortlist | None = None,
    nbest: int | None = None,
    attention: bool = False,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Translate sentences; one translation for each, in their order.

    An empty source has an empty translation and never reaches the device, except with a language model, which reads no
    source. A source longer than the model's positions is cut at the end, and `Translation.cut` says by how much. No
    result depends on the other sentences, on their order, or on the number of devices.

    Batches are started from threads of their own: settings of JAX that belong to the calling thread, such as
    `with jax.default_matmul_precision(...)`, do not reach them; `jax.config.update` and `matmul_precision` of the model
    do.

    Args:
      params: merged parameters; a tuple of several is an ensemble, whose probabilities are averaged. With
        `search.lm_weight` the last of them is the language model. Where many calls follow, give them as
        `encoder_decoder.precompute` returns them: each call does that for parameters that are not.
      cfg: the model, or as many.
      search: options of the search.
      sources: token ids without the end symbol and padding.
      prefixes: tokens that each translation begins with.
      phrases: for each sentence, token sequences that must occur in it, in any order.
      key: for sampling, a random key for each sentence, or one that the number of the sentence is folded into.
      shortlist: the words that a translation may use; None for all words. It has to be of the models' vocabularies.
      nbest: most candidates of each sentence; None for all that the search has.
      attention: whether candidates hold their attention weights.
      batching: how sentences are put into batches.
      devices: that batches are spread over; None for all local ones.
      progress: called with the number of sentences done since the call before.

    Returns:
      Translations; where the model yields no number at all, an empty one of score -inf.

    Raises:
      ValueError: ids that are outside the vocabulary, end symbols or padding; prefixes or phrases that are not as many
        as sources, that do not fit into a translation, or that are given for an empty source; sampling without a key,
        a key without sampling, or keys that are not as many; `nbest` below 1; a shortlist with sampling;
        `search.lm_weight` without a language model, or the reverse; a coverage penalty without attention.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`; `key` is no random key.
    """
    members, cfgs = members_of(params, cfg, search)
    check_config(batching, Batching, name="batching")
    count = len(sources)
    prefixes = [()] * count if prefixes is None else prefixes
    phrases = [()] * count if phrases is None else phrases
    if shortlist is not None and search.sampling:
        raise ValueError("a shortlist with sampling: samples are drawn from all words; leave one out")
    check_untraced((params, key), sources, prefixes, *phrases)
    sources = checked_sources(sources, members, cfgs)
    if key is not None and not search.sampling:
        raise ValueError("key without sampling: nothing is drawn in this search; leave it out, or set sampling=True")
    drawn = keys.on_host(key, count) if search.sampling else None
    if nbest is not None and nbest < 1:
        raise ValueError(f"nbest is {nbest}: use 1 or more, or None for all that the search has")
    reads = any(c.reads_source for c in cfgs)
    room = min(c.max_source for c in cfgs) - 1
    cuts = [max(0, len(source) - room) for source in sources]
    lengths = [min(len(source), room) + 1 for source in sources]
    most = [longest(cfgs, search, length) for length in lengths]
    check_required(sources, prefixes, phrases, most, reads=reads)
    if any(map(len, prefixes)) or any(map(len, phrases)):
        check_required_ids(prefixes, phrases, target_size(members[0], cfgs[0]))
    largest = at_least(sizes(prefixes, phrases), batching.min_axes)

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        width = group[0].width
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(sources, indices, width, room)
        selection, row_prefixes, row_phrases = selected(group)
        asked = request(
            [0 if i is None else most[i] for i in indices],
            row_prefixes,
            row_phrases,
            None if drawn is None else keys.rows(drawn, indices),
            axes=largest,
        )
        limit = longest(cfgs, search, width) + 1
        placed_members, numbers = on(mesh)
        src, asked, selection = put((src, asked, selection), mesh)
        return generate(
            placed_members,
            cfgs,
            strategy,
            structure,
            numbers,
            src,
            asked,
            limit=limit,
            selection=selection,
            attention=attention,
            mesh=mesh,
        )

    strategy, structure = strategy_of(search, phrases=largest.phrases > 0), structure_of(search)
    real = [i for i, source in enumerate(sources) if len(source) > 0 or not reads]
    results = [Translation((NOTHING,))] * count
    if progress is not None and len(real) < count:
        progress(count - len(real))
    plan = _numbered(batches([lengths[i] for i in real], batching), real)
    read = [source[:room] for source in sources]
    selected = wishes_of(shortlist, plan, read, prefixes, phrases, sizes=batching.word_sizes)
    if plan:
        members = tuple(_precomputed(member, c) for member, c in zip(members, cfgs, strict=True))
    # numbers are placed once, not copied to the device with each batch
    on = placed((members, jax.device_put(numbers_of(search))))
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i], nbest=nbest), cuts[i])
    return results


def score(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    *,
    attention: bool = False,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Score given translations, with the scores that the search would report for these tokens.

    Temperature, penalties and normalisation are those of `search`; bounds of the length are not applied.

    Args:
      params, cfg, search, attention, devices, progress: as in `translate`.
      sources, targets: token ids without the end symbol and padding, as many of both.
      batching: how pairs are put into batches, by the longer side; `min_axes` and `word_sizes` do not apply.

    Returns:
      One candidate for each pair. A target beyond the model's positions has score -inf and no token scores.

    Raises:
      ValueError: numbers of sources and targets differ, or ids are outside the vocabulary, end symbols or padding;
        a coverage penalty without attention.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`; `force` takes them.
    """
    members, cfgs = members_of(params, cfg, search)
    check_config(batching, Batching, name="batching")
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets: each needs one")
    check_untraced(params, sources, targets)
    sources, targets = checked_sources(sources, members, cfgs), as_ids("its target", targets)
    check_ids("its target", targets, target_size(members[0], cfgs[0]))
    room = min(c.max_source for c in cfgs) - 1
    most = min(c.max_target for c in cfgs)
    lengths = [min(len(source), room) + 1 for source in sources]
    fits = [i for i, target in enumerate(targets) if len(target) + 1 <= most]

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(sources, indices, group[0].width, room)
        tgt = pad_rows([None if i is None else targets[i] for i in indices], src.shape)
        return force(on(mesh), cfgs, structure, numbers, *put((src, tgt), mesh), attention=attention, mesh=mesh)

    structure, numbers = structure_of(search), numbers_of(search)
    on = placed(members)
    results = [Translation((UNSCORED,), max(0, len(source) - room)) for source in sources]
    plan = _numbered(batches([max(lengths[i], len(targets[i]) + 1) for i in fits], batching), fits)
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i]), results[i].cut)
    return results


def longest(cfg: ModelConfigs, search: SearchConfig, source_length: int) -> int:
    """Most tokens before the end symbol, for a source of `source_length` tokens, its end symbol counted."""
    cfgs = cfg if isinstance(cfg, tuple) else (cfg,)
    return min(search.max_length(source_length), *(c.max_target - 1 for c in cfgs))


def _numbered(plan: Sequence[Bucket], sentences: Sequence[int]) -> list[Bucket]:
    """A plan for some sentences, its indices replaced by the numbers of these sentences."""
    return [bucket._replace(indices=tuple(sentences[i] for i in bucket.indices)) for bucket in plan]


def _precomputed(params: Params, cfg: ModelConfig) -> Params:
    """Parameters for decoding token by token, made here where the caller has not made them."""
    if isinstance(params, PrecomputedParams) or cfg.decoder.kind not in FAST_DECODERS:
        return params
    return _precompute(params, cfg)


_precompute = jax.jit(encoder_decoder.precompute, static_argnums=1)


def source_rows(sources: Sequence[np.ndarray], indices: Sequence[int | None], width: int, room: int) -> np.ndarray:
    """Rows of source tokens, end symbol, PAD: [len(indices), width]; an end symbol alone where there is no sentence.

    Args:
      sources: token ids without the end symbol.
      indices: of the sentences, None for rows that hold none.
      width: columns.
      room: tokens of a sentence that count; the others are cut off.
    """
    return pad_rows([() if i is None else sources[i][:room] for i in indices], (len(indices), width))
