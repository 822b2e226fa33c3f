"""Translation of sentences: batching, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from numbers import Integral
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
from convs2s_jax.search.candidates import Translation, candidates_of, without_tokens
from convs2s_jax.search.checks import (
    ModelConfigs,
    Models,
    check_required,
    check_shortlist,
    check_untraced,
    checked_sources,
    members_of,
    target_size,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force, generate
from convs2s_jax.search.numbers import numbers_of
from convs2s_jax.search.request import as_ids, as_phrases, check_ids, check_required_ids, request, sizes
from convs2s_jax.search.shortlist import Shortlist, batch_constraints_of
from convs2s_jax.search.spread import put, replicator, spread
from convs2s_jax.search.strategies.table import strategy_of
from convs2s_jax.search.structure import structure_of


def translate(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[Tokens],
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
    """Translate sentences of token ids. Return one `Translation` per sentence, in the same order.

    An empty source has an empty translation and never reaches the device, except with a language model, which reads no
    source. A source longer than the model's positions is truncated at the end, and `Translation.cut` is the number of
    tokens removed. No result depends on the other sentences, on their order, or on the number of devices.

    Batches are started from separate threads. JAX settings of the calling thread, such as
    `with jax.default_matmul_precision(...)`, do not apply to them; `jax.config.update` and `matmul_precision` of the
    model do.

    Args:
      params: merged parameters; a tuple or list of several is an ensemble, whose probabilities are averaged. With
        `search.lm_weight`, the last of them is the language model. For repeated calls, pass the parameters that
        `encoder_decoder.precompute` returns; otherwise each call computes them again.
      cfg: the model configuration, or a tuple or list with one for each of the `params`.
      search: options of the search.
      sources: token ids without the end symbol and padding.
      prefixes: tokens that each translation must begin with.
      phrases: for each sentence, token sequences that its translation must contain, in any order.
      key: for sampling, one random key per sentence, or a single key, into which the index of each sentence is folded.
      shortlist: the words that a translation may use; None for all words. It must belong to the models' vocabularies.
      nbest: maximum number of candidates per sentence; None for all that the search finds.
      attention: whether candidates include their attention weights.
      batching: how sentences are batched.
      devices: devices that batches are distributed over; None for all local ones.
      progress: called with the number of sentences done since the previous call.

    Returns:
      Translations. If the model's scores are not finite, a translation is empty and has score -inf.

    Raises:
      ValueError: ids that are outside the vocabulary, end symbols or padding; prefixes or phrases that differ in number
        from the sources, do not fit into a translation, or are given for an empty source; sampling without a key, a key
        without sampling, or the wrong number of keys; `nbest` below 1; a shortlist, or room for phrases, with sampling;
        `search.lm_weight` without a language model, or the reverse; a coverage penalty without attention; models or a
        shortlist of different vocabularies.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`; `key` is not a random key.
    """
    members, cfgs = members_of(params, cfg, search)
    count = len(sources)
    check_untraced((params, key), sources, () if prefixes is None else prefixes, *(() if phrases is None else phrases))
    _check_options(search, batching, key, shortlist, nbest)
    sources = checked_sources(sources, members, cfgs)
    prefixes = as_ids("its prefix", [()] * count if prefixes is None else prefixes)
    phrases = as_phrases([()] * count if phrases is None else phrases)
    drawn = keys.on_host(key, count) if search.sampling else None
    reads = any(c.reads_source for c in cfgs)
    read, cuts = _truncated(sources, cfgs)
    lengths = [len(source) + 1 for source in read]
    most = [max_output_length(cfgs, search, length) for length in lengths]
    check_required(sources, prefixes, phrases, most, reads=reads)
    real = [i for i, source in enumerate(sources) if len(source) > 0 or not reads]
    if real:  # otherwise there may be no parameters
        words = target_size(members, cfgs)
        check_required_ids(prefixes, phrases, words)
        if shortlist is not None:
            check_shortlist(shortlist, members, cfgs, words)
    largest = at_least(sizes(prefixes, phrases), batching.min_axes)

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        width = group[0].width
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(read, indices, width)
        selection, row_prefixes, row_phrases = selected(group)
        asked = request(
            [0 if i is None else most[i] for i in indices],
            row_prefixes,
            row_phrases,
            None if drawn is None else keys.rows(drawn, indices),
            axes=largest,
        )
        limit = max_output_length(cfgs, search, width) + 1
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
    results = [Translation((without_tokens(0.0, attention=attention),))] * count
    if progress is not None and len(real) < count:
        progress(count - len(real))
    plan = _numbered(batches([lengths[i] for i in real], batching), real)
    selected = batch_constraints_of(shortlist, plan, read, prefixes, phrases, sizes=batching.word_sizes)
    if plan:
        members = tuple(_precomputed(member, c) for member, c in zip(members, cfgs, strict=True))
    # numbers are placed once, not copied to the device with each batch
    on = replicator((members, jax.device_put(numbers_of(search))))
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i], nbest=nbest), cuts[i])
    return results


def score(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    *,
    attention: bool = False,
    batching: Batching = DEFAULT_BATCHING,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:
    """Score given translations, with the scores that the search would report for these tokens.

    Temperature, penalties and normalisation are those of `search`; its length bounds are not applied.

    Args:
      params, cfg, search, attention, devices, progress: as in `translate`.
      sources, targets: token ids without the end symbol and padding, the same number of both.
      batching: how pairs are batched, by the longer side; `min_axes` and `word_sizes` do not apply.

    Returns:
      A `Translation` with one candidate for each pair. A target longer than the model's positions has score -inf and no
      token scores.

    Raises:
      ValueError: the numbers of sources and targets differ; ids that are outside the vocabulary, end symbols or
        padding; a coverage penalty without attention; models of different vocabularies.
      TypeError: parameters or ids are traced by `jit`, `grad` or `vmap`; use `force` there.
    """
    members, cfgs = members_of(params, cfg, search)
    check_config(batching, Batching, name="batching")
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets: pass one target per source")
    check_untraced(params, sources, targets)
    sources, targets = checked_sources(sources, members, cfgs), as_ids("its target", targets)
    check_ids("its target", targets, target_size(members, cfgs))
    read, cuts = _truncated(sources, cfgs)
    lengths = [len(source) + 1 for source in read]
    unscored = (without_tokens(float("-inf"), attention=attention),)
    results = [Translation(unscored, cut) for cut in cuts]
    most = min(c.max_target for c in cfgs)
    fits = [i for i, target in enumerate(targets) if len(target) + 1 <= most]
    if progress is not None and len(fits) < len(targets):
        progress(len(targets) - len(fits))

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(read, indices, group[0].width)
        tgt = pad_rows([None if i is None else targets[i] for i in indices], src.shape)
        return force(on(mesh), cfgs, structure, numbers, *put((src, tgt), mesh), attention=attention, mesh=mesh)

    structure, numbers = structure_of(search), numbers_of(search)
    on = replicator(members)
    plan = _numbered(batches([max(lengths[i], len(targets[i]) + 1) for i in fits], batching), fits)
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i]), cuts[i])
    return results


def _check_options(
    search: SearchConfig,
    batching: Batching,
    key: Key | np.ndarray | None,
    shortlist: Shortlist | None,
    nbest: int | None,
) -> None:
    """Refuse options of `translate` that are wrong or do not fit each other."""
    check_config(batching, Batching, name="batching")
    if shortlist is not None and search.sampling:
        raise ValueError("shortlist with sampling: samples are drawn from the whole vocabulary; leave one out")
    if key is not None and not search.sampling:
        raise ValueError("key without sampling: this search draws no samples; leave it out, or set sampling=True")
    if nbest is not None and (not isinstance(nbest, Integral) or nbest < 1):
        raise ValueError(f"nbest is {nbest!r}: use 1 or more, or None for all that the search finds")
    if batching.min_axes.phrases and (search.sampling or search.diverse_groups > 1):
        raise ValueError(
            f"batching.min_axes has room for {batching.min_axes.phrases} phrases, which work with plain beam search "
            "only: use 0"
        )


def _truncated(sources: Sequence[np.ndarray], cfgs: Sequence[ModelConfig]) -> tuple[list[np.ndarray], list[int]]:
    """Truncate sources to the models' positions. Return them, and how many tokens of each were removed."""
    room = min(c.max_source for c in cfgs) - 1
    return [source[:room] for source in sources], [max(0, len(source) - room) for source in sources]


def max_output_length(cfgs: Sequence[ModelConfig], search: SearchConfig, source_length: int) -> int:
    """Return the maximum number of tokens before the end symbol; `source_length` includes the end symbol."""
    return min(search.max_length(source_length), *(c.max_target - 1 for c in cfgs))


def _numbered(plan: Sequence[Bucket], sentences: Sequence[int]) -> list[Bucket]:
    """Return a plan whose indices into `sentences` are replaced by the entries of `sentences`."""
    return [bucket._replace(indices=tuple(sentences[i] for i in bucket.indices)) for bucket in plan]


def _precomputed(params: Params, cfg: ModelConfig) -> Params:
    """Return parameters for decoding token by token, computed here unless the caller has done so."""
    if isinstance(params, PrecomputedParams) or cfg.decoder.kind not in FAST_DECODERS:
        return params
    return _precompute(params, cfg)


_precompute = jax.jit(encoder_decoder.precompute, static_argnums=1)


def source_rows(sources: Sequence[np.ndarray], indices: Sequence[int | None], width: int) -> np.ndarray:
    """Return rows of source tokens, end symbol and PAD, [len(indices), width]; empty rows have an end symbol only.

    Args:
      sources: token ids without the end symbol.
      indices: indices of the sentences, None for empty rows.
      width: number of columns.
    """
    return pad_rows([() if i is None else sources[i] for i in indices], (len(indices), width))
