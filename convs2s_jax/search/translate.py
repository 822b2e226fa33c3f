"""Translation of sentences: checks, batches, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.rows import Tokens, pad_rows
from convs2s_jax.core.tokens import BOS
from convs2s_jax.models import conversion
from convs2s_jax.models.checks import check_config
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params, PrecomputedParams
from convs2s_jax.nn.types import Key
from convs2s_jax.search import keys
from convs2s_jax.search.batching import (
    DEFAULT_BATCHING,
    Batching,
    Bucket,
    batches,
    grouped,
    max_output_length,
    put,
    replicator,
    source_rows,
    spread,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.ensemble import ModelConfigs, Models, members_of, source_sizes, target_size
from convs2s_jax.search.generate import generate, scores_of
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.options import SearchOptions, search_options
from convs2s_jax.search.requests import Sizes, as_ids, as_phrases, check_ids, check_required, is_list, request, sizes
from convs2s_jax.search.shortlist import Shortlist, batch_constraints_of
from convs2s_jax.search.strategies import Strategy


@dataclass(frozen=True)
class Candidate:
    """One translation of a sentence, as arrays on the host.

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
    strategy: Strategy | None = None,
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
        `conversion.precompute` returns; otherwise each call computes them again.
      cfg: the model configuration, or a tuple or list with one for each of the `params`.
      search: options of the search.
      sources: token ids without the end symbol and padding.
      prefixes: tokens that each translation must begin with.
      phrases: for each sentence, token sequences that its translation must contain, in any order.
      key: for sampling, one random key per sentence, or a single key, into which the index of each sentence is folded.
      shortlist: the words that a translation may use; None for all words. It must belong to the models' vocabularies.
      strategy: how candidates are chosen and when a sentence is done, instead of what `search` selects.
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
    if nbest is not None and (not isinstance(nbest, Integral) or nbest < 1):
        raise ValueError(f"nbest is {nbest!r}: use 1 or more, or None for all that the search finds")
    call = _checked(params, cfg, search, sources, prefixes, phrases, key, shortlist, strategy, batching)
    results = [Translation((without_tokens(0.0, attention=attention),))] * len(sources)
    if progress is not None and (empty := len(sources) - sum(len(bucket.indices) for bucket in call.plan)):
        progress(empty)
    members = call.members
    if call.plan:  # otherwise there may be no parameters
        members = tuple(
            _precompute(p, c) if _can_precompute(p, c) else p for p, c in zip(members, call.cfgs, strict=True)
        )
    # numbers are placed once, not copied to the device with each batch
    on = replicator((members, jax.device_put(call.options)))

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        return call.run(generate, on(mesh), group, mesh, attention)

    for i, found, weights in spread(call.plan, run, devices, progress):
        results[i] = Translation(_candidates(found, weights, call.lengths[i], nbest), call.cuts[i])
    return results


def lowerings(
    params: Params,
    cfg: ModelConfig,
    search: SearchConfig,
    sources: Sequence[Tokens],
    *,
    key: Key | np.ndarray | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> dict[tuple[int, ...], Callable[[], jax.stages.Lowered]]:
    """Return functions that trace the programs of `translate` for these arguments, to compile them before they run.

    Args:
      params: abstract parameters of one model, not precomputed: shapes, dtypes, and a sharding with their device.
      cfg: the model configuration.
      search, sources, key, devices: as in `translate`.

    Returns:
      A function for each program: the search by number of devices, rows and columns of a device's batch, and () for the
      program that precomputes parameters, if `translate` calls it.

    Raises:
      ValueError, TypeError: as `translate`.
    """
    call = _checked(params, cfg, search, sources, key=key)
    if not call.plan:
        return {}
    found: dict[tuple[int, ...], Callable[[], jax.stages.Lowered]] = {}
    fast = params
    if _can_precompute(params, cfg):
        found[()] = partial(_precompute.lower, params, cfg)
        fast = jax.eval_shape(partial(_precompute, cfg=cfg), params)
    mesh, groups = grouped(call.plan, devices)
    options = replicator(jax.device_put(call.options))(mesh)
    where = jax.tree.leaves(params)[0].sharding if mesh is None else NamedSharding(mesh, P())
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), fast)
    for group in groups:
        run = partial(call.run, generate.lower, ((placed,), options), group, mesh, False)
        found.setdefault((len(group), *group[0].shape), run)
    return found


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
    members, cfgs, options = _checked_models(params, cfg, search, batching, sources, targets)
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets: pass one target per source")
    given = _checked_sources(sources, members, cfgs)
    targets = as_ids("its target", targets)
    check_ids("its target", enumerate(targets), target_size(members, cfgs))
    room = min(c.max_source for c in cfgs) - 1
    cut = [max(0, len(source) - room) for source in given]
    read = [source[:room] for source in given]
    results = [Translation((without_tokens(float("-inf"), attention=attention),), n) for n in cut]
    most = min(c.max_target for c in cfgs)
    fits = [i for i, target in enumerate(targets) if len(target) + 1 <= most]
    if progress is not None and len(fits) < len(targets):
        progress(len(targets) - len(fits))

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        indices = [i for bucket in group for i in bucket.padded]
        src = source_rows(read, indices, group[0].width)
        tgt = pad_rows([None if i is None else targets[i] for i in indices], src.shape)
        return scores_of(on(mesh), cfgs, options, *put((src, tgt), mesh), attention=attention, mesh=mesh)

    on = replicator(members)
    longer = [max(len(source), len(target)) + 1 for source, target in zip(read, targets, strict=True)]
    for i, found, weights in spread(batches(longer, batching, among=fits), run, devices, progress):
        results[i] = Translation(_candidates(found, weights, len(read[i]) + 1), cut[i])
    return results


class _Call(NamedTuple):
    """A checked call of `translate`.

    Attributes:
      members, cfgs, options: the models and the options of the search.
      plan: the batches.
      lengths: number of source tokens that are read, including the end symbol.
      cuts: number of tokens that each source lost.
      run: (program, placed parameters and options, batches of equal shape, mesh, attention) -> what the program
        returns, which is `generate`, or a function of the same arguments, for one batch on each device of the mesh.
    """

    members: tuple[Params, ...]
    cfgs: tuple[ModelConfig, ...]
    options: SearchOptions
    plan: Sequence[Bucket]
    lengths: Sequence[int]
    cuts: Sequence[int]
    run: Callable[[Callable[..., Any], tuple[Any, SearchOptions], Sequence[Bucket], Mesh | None, bool], Any]


def _checked(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[Tokens],
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    key: Key | np.ndarray | None = None,
    shortlist: Shortlist | None = None,
    strategy: Strategy | None = None,
    batching: Batching = DEFAULT_BATCHING,
) -> _Call:
    """Check the arguments of `translate`, and plan its batches."""
    given = () if prefixes is None else prefixes, () if phrases is None else phrases
    members, cfgs, options = _checked_models(params, cfg, search, batching, sources, given[0], *given[1], key=key)
    if shortlist is not None and search.sampling:
        raise ValueError("shortlist with sampling: samples are drawn from the whole vocabulary; leave one out")
    if key is not None and not search.sampling and strategy is None:
        raise ValueError("key without sampling: this search draws no samples; leave it out, or set sampling=True")
    if batching.min_axes.phrases and (search.sampling or search.diverse_groups > 1):
        raise ValueError(
            f"batching.min_axes has room for {batching.min_axes.phrases} phrases, which work with plain beam search "
            "only: use 0"
        )
    count = len(sources)
    texts = _checked_sources(sources, members, cfgs)
    prefixes = as_ids("its prefix", [()] * count if prefixes is None else prefixes)
    phrases = as_phrases([()] * count if phrases is None else phrases)
    if len(prefixes) != count or len(phrases) != count:
        raise ValueError(
            f"got {count} sources, {len(prefixes)} prefixes and {len(phrases)} lists of phrases: pass one of each per "
            "source"
        )
    reads = any(c.reads_source for c in cfgs)
    room = min(c.max_source for c in cfgs) - 1
    read = [source[:room] for source in texts]
    most = partial(max_output_length, cfgs, search)
    for i, (source, prefix, wanted) in enumerate(zip(texts, prefixes, phrases, strict=True)):
        needed, longest = len(prefix) + sum(map(len, wanted)), most(len(read[i]) + 1)
        if needed > longest:
            raise ValueError(
                f"sentence {i}: prefix and phrases have {needed} tokens, but its translation has at most {longest}"
            )
        if needed and reads and not len(source):
            raise ValueError(
                f"sentence {i}: its source is empty, so its translation is empty too: leave out its prefix and phrases"
            )
    real = [i for i, source in enumerate(texts) if len(source) > 0 or not reads]
    if real:  # otherwise there may be no parameters
        V = target_size(members, cfgs)
        check_required(prefixes, phrases, V)
        if shortlist is not None:
            shortlist.check(source_sizes(members, cfgs), V)
    lengths = [len(source) + 1 for source in read]
    plan = batches(lengths, batching, among=real)
    axes = Sizes(*map(max, astuple(sizes(prefixes, phrases)), astuple(batching.min_axes)))
    constraints = batch_constraints_of(shortlist, plan, read, prefixes, phrases, sizes=batching.word_sizes)
    drawn = keys.on_host(key, count) if search.sampling or key is not None else None

    def run(
        program: Callable[..., Any],
        placed: tuple[Any, SearchOptions],
        group: Sequence[Bucket],
        mesh: Mesh | None,
        attention: bool,
    ) -> Any:
        width = group[0].width
        indices = [i for bucket in group for i in bucket.padded]
        selection, starts, required = constraints(group)
        longest = [0 if i is None else most(lengths[i]) for i in indices]
        asked = request(longest, starts, required, None if drawn is None else keys.rows(drawn, indices), axes=axes)
        src, asked, selection = put((source_rows(read, indices, width), asked, selection), mesh)
        return program(
            placed[0],
            cfgs,
            placed[1],
            src,
            asked,
            limit=most(width) + 1,
            strategy=strategy,
            selection=selection,
            attention=attention,
            mesh=mesh,
        )

    cuts = [len(source) - len(kept) for source, kept in zip(texts, read, strict=True)]
    return _Call(members, cfgs, options, plan, lengths, cuts, run)


def _checked_models(
    params: Models, cfg: ModelConfigs, search: SearchConfig, batching: Batching, *given: Any, key: Any = None
) -> tuple[tuple[Params, ...], tuple[ModelConfig, ...], SearchOptions]:
    """Return the members, their configs and the options; reject other types, and traced values."""
    check_config(search, SearchConfig, name="search")
    options = search_options(search)
    members, cfgs = members_of(params, cfg, options)
    check_config(batching, Batching, name="batching")
    wholes = (*jax.tree.leaves((params, key)), *given)  # checked first, so that no tracer is iterated over
    if any(isinstance(x, jax.core.Tracer) for x in chain(wholes, chain.from_iterable(filter(is_list, given)))):
        raise TypeError(
            "translate and score need concrete values, but params or sequences are traced by jit, grad or vmap: use "
            "beam_search there, and loss or force for scores that have gradients"
        )
    return members, cfgs, options


def _checked_sources(
    sources: Sequence[Tokens], members: tuple[Params, ...], cfgs: tuple[ModelConfig, ...]
) -> list[np.ndarray]:
    """Return the sources as arrays, after checking that their ids are in all source vocabularies, not BOS, EOS or PAD.

    The parameters are not checked if there are no tokens. A language model reads no source.
    """
    found = as_ids("its source", sources)
    if any(cfg.reads_source for cfg in cfgs) and any(map(len, found)):
        check_ids("its source", enumerate(found), min(source_sizes(members, cfgs)), BOS)
    return found


def without_tokens(score: float, *, attention: bool) -> Candidate:
    """Return the candidate of an empty source, with score 0, or of a sentence that cannot be scored, with -inf."""
    none = np.zeros(0, np.float32)
    return Candidate(np.zeros(0, np.int32), score, none, none.reshape(0, 0) if attention else None)


def _candidates(
    found: Hypotheses, weights: np.ndarray | None, source_length: int, nbest: int | None = None
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


def _can_precompute(params: Params, cfg: ModelConfig) -> bool:
    return not isinstance(params, PrecomputedParams) and cfg.decoder.functions.precompute is not None


_precompute = jax.jit(conversion.precompute, static_argnums=1)
