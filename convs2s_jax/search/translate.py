"""Translating sentences: batching, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.rows import Tokens, pad_rows
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params, PrecomputedParams
from convs2s_jax.models.table import FAST_DECODERS
from convs2s_jax.search.buckets import Bucket, batches
from convs2s_jax.search.candidates import NOTHING, UNSCORED, Translation, candidates_of
from convs2s_jax.search.checks import (
    ModelConfigs,
    Models,
    check_required,
    check_untraced,
    checked_draws,
    checked_sources,
    members_of,
    target_size,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force, generate
from convs2s_jax.search.numbers import numbers_of
from convs2s_jax.search.request import NO_AXES, Sizes, as_ids, at_least, check_ids, check_required_ids, request, sizes
from convs2s_jax.search.shortlist import Shortlist, wishes_of
from convs2s_jax.search.spread import placed, put, spread
from convs2s_jax.search.strategies.table import strategy_of
from convs2s_jax.search.structure import structure_of


def translate(
    params: Models,
    cfg_model: ModelConfigs,
    cfg: SearchConfig,
    sources: Sequence[np.ndarray],
    *,
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    seed: int = 0,
    first: int = 0,
    draws: Sequence[tuple[int, int]] | None = None,
    shortlist: Shortlist | None = None,
    nbest: int | None = None,
    attention: bool = False,
    rows: int = 64,
    tokens: int = 16384,
    least_width: int = 16,
    least_rows: int = 1,
    word_sizes: Sequence[int] = (),
    least_axes: Sizes = NO_AXES,
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
        `cfg.lm_weight` the last of them is the language model. Where many calls follow, give them as
        `encoder_decoder.precompute` returns them: each call does that for parameters that are not.
      cfg_model: the model, or as many.
      cfg: the search.
      sources: token ids without the end symbol and padding.
      prefixes: tokens that each translation begins with.
      phrases: for each sentence, token sequences that must occur in it, in any order.
      seed, first: samples are drawn with a key made of `seed` (below 2^32) and the number of the sentence, counted from
        `first`.
      draws: in place of these, the seed and the number for each sentence.
      shortlist: the words that a translation may use; None for all words. It has to be of the models' vocabularies.
      nbest: most candidates of each sentence; None for all that the search has.
      attention: whether candidates hold their attention weights.
      rows: most sentences in a batch.
      tokens: most source tokens in a batch, padding counted.
      least_width: source arrays are at least this wide, so that short sentences share one compilation.
      least_rows: a batch that is the only one has at least this many rows, so that small ones share one compilation.
      word_sizes: with a shortlist, the sizes that the words of a batch may have, ascending, the whole vocabulary last;
        if empty, those of `shortlist.union_size`.
      least_axes: the arrays of prefixes and phrases are at least this large.
      devices: that batches are spread over; None for all local ones.
      progress: called with the number of sentences done since the call before.

    Returns:
      Translations; where the model yields no number at all, an empty one of score -inf.

    Raises:
      ValueError: ids that are outside the vocabulary, end symbols or padding; prefixes or phrases that are not as many
        as sources, that do not fit into a translation, or that are given for an empty source; `draws` that are not as
        many, or not 32-bit numbers; `nbest` below 1; a shortlist with sampling; `cfg.lm_weight` without a language
        model, or the reverse.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`.
    """
    members, cfgs = members_of(params, cfg_model, cfg)
    count = len(sources)
    prefixes = [()] * count if prefixes is None else prefixes
    phrases = [()] * count if phrases is None else phrases
    check_untraced(params, sources, prefixes, *phrases)
    sources = checked_sources(sources, members, cfgs)
    drawn = checked_draws(count, seed, first, draws)
    if nbest is not None and nbest < 1:
        raise ValueError(f"nbest is {nbest}: use 1 or more, or None for all that the search has")
    reads = any(c.reads_source for c in cfgs)
    room = min(c.max_source for c in cfgs) - 1
    cuts = [max(0, len(source) - room) for source in sources]
    lengths = [min(len(source), room) + 1 for source in sources]
    most = [longest(cfgs, cfg, length) for length in lengths]
    check_required(sources, prefixes, phrases, most, reads=reads)
    if any(map(len, prefixes)) or any(map(len, phrases)):
        check_required_ids(prefixes, phrases, target_size(members[0], cfgs[0]))
    largest = at_least(sizes(prefixes, phrases), least_axes)

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        width = group[0].width
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(sources, indices, width, room)
        selection, row_prefixes, row_phrases = selected(group)
        asked = request(
            [0 if i is None else most[i] for i in indices],
            row_prefixes,
            row_phrases,
            _keys([(0, 0) if i is None else drawn[i] for i in indices]) if cfg.sampling else None,
            axes=largest,
        )
        limit = longest(cfgs, cfg, width) + 1
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

    if shortlist is not None and cfg.sampling:
        raise ValueError("a shortlist with sampling: samples are drawn from all words; leave one out")
    strategy, structure = strategy_of(cfg, phrases=largest.phrases > 0), structure_of(cfg)
    real = [i for i, source in enumerate(sources) if len(source) > 0 or not reads]
    results = [Translation((NOTHING,))] * count
    if progress is not None and len(real) < count:
        progress(count - len(real))
    plan = batches([lengths[i] for i in real], rows=rows, tokens=tokens, least_width=least_width, least_rows=least_rows)
    plan = [b._replace(indices=tuple(real[i] for i in b.indices)) for b in plan]
    read = [source[:room] for source in sources]
    selected = wishes_of(shortlist, plan, read, prefixes, phrases, sizes=word_sizes)
    if plan:
        members = tuple(_precomputed(member, c) for member, c in zip(members, cfgs, strict=True))
    # numbers are placed once, not copied to the device with each batch
    on = placed((members, jax.device_put(numbers_of(cfg))))
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i], nbest=nbest), cuts[i])
    return results


def score(
    params: Models,
    cfg_model: ModelConfigs,
    cfg: SearchConfig,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    *,
    attention: bool = False,
    rows: int = 64,
    tokens: int = 16384,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Score given translations, with the scores that the search would report for these tokens.

    Temperature, penalties and normalisation are those of `cfg`; bounds of the length are not applied.

    Args:
      params, cfg_model, cfg, attention, rows, tokens, devices, progress: as in `translate`.
      sources, targets: token ids without the end symbol and padding, as many of both.

    Returns:
      One candidate for each pair. A target beyond the model's positions has score -inf and no token scores.

    Raises:
      ValueError: numbers of sources and targets differ, or ids are outside the vocabulary, end symbols or padding.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`; `force` takes them.
    """
    members, cfgs = members_of(params, cfg_model, cfg)
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

    structure, numbers = structure_of(cfg), numbers_of(cfg)
    on = placed(members)
    results = [Translation((UNSCORED,), max(0, len(source) - room)) for source in sources]
    longer = [max(lengths[i], len(targets[i]) + 1) for i in fits]
    plan = batches(longer, rows=rows, tokens=tokens)
    plan = [b._replace(indices=tuple(fits[i] for i in b.indices)) for b in plan]
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i]), results[i].cut)
    return results


def longest(cfg_model: ModelConfigs, cfg: SearchConfig, source_length: int) -> int:
    """Most tokens before the end symbol, for a source of `source_length` tokens, its end symbol counted."""
    cfgs = cfg_model if isinstance(cfg_model, tuple) else (cfg_model,)
    return min(cfg.max_length(source_length), *(c.max_target - 1 for c in cfgs))


def _precomputed(params: Params, cfg: ModelConfig) -> Params:
    """Parameters for decoding token by token, made here where the caller has not made them."""
    if isinstance(params, PrecomputedParams) or cfg.decoder.kind not in FAST_DECODERS:
        return params
    return _precompute(params, cfg)


_precompute = jax.jit(encoder_decoder.precompute, static_argnums=1)


def _keys(draws: Sequence[tuple[int, int]]) -> jax.Array:
    """A random key for each sentence, a function of a seed and of the sentence's number."""
    seeds, numbers = np.asarray(draws, np.uint32).T
    return jax.vmap(lambda seed, number: jax.random.fold_in(jax.random.key(seed), number))(seeds, numbers)


def source_rows(sources: Sequence[np.ndarray], indices: Sequence[int | None], width: int, room: int) -> np.ndarray:
    """Rows of source tokens, end symbol, PAD: [len(indices), width]; an end symbol alone where there is no sentence.

    Args:
      sources: token ids without the end symbol.
      indices: of the sentences, None for rows that hold none.
      width: columns.
      room: tokens of a sentence that count; the others are cut off.
    """
    return pad_rows([() if i is None else sources[i][:room] for i in indices], (len(indices), width))
