"""Translation of sentences: checks, batches, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

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
    max_output_length,
    put,
    replicator,
    source_rows,
    spread,
)
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import (
    ModelConfigs,
    Models,
    generate,
    members_of,
    scores_of,
    source_sizes,
    target_size,
)
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.options import SearchOptions, search_options
from convs2s_jax.search.requests import Sizes, as_ids, as_required, check_ids, request, sizes
from convs2s_jax.search.shortlist import Shortlist, selector, word_indices
from convs2s_jax.search.strategies import Strategy


@dataclass(frozen=True)
class Candidate:
    """One translation of a sentence, as arrays on the host.

    Attributes:
      tokens: token ids without the end symbol.
      score: the score by which candidates are ranked (see `SearchConfig`).
      token_scores: the model's score of each token and of the end symbol in nats, one more than `tokens`.
      attention: [tokens + 1, S], the attention of each symbol to each source token, including end symbols; None unless
        it was requested.
      sampler_log_probs: of a sample, log-probability with which each of these symbols was drawn (see `Hypotheses`).
    """

    tokens: np.ndarray
    score: float
    token_scores: np.ndarray
    attention: np.ndarray | None = None
    sampler_log_probs: np.ndarray | None = None


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
    source. A source longer than the model's positions is truncated at the end. No result depends on the other
    sentences, on their order, or on the number of devices.

    Batches are started from separate threads, to which JAX settings of the calling thread, such as
    `with jax.default_matmul_precision(...)`, do not apply; `jax.config.update` and the model's `matmul_precision` do.

    Args:
      params: merged parameters; a tuple or list of several is an ensemble. With `search.lm_weight`, the last of them is
        the language model. For repeated calls, pass the parameters that `conversion.precompute` returns.
      cfg: the model configuration, or one for each of the `params`.
      search: options of the search.
      sources: token ids without the end symbol and padding.
      prefixes: tokens that each translation must begin with.
      phrases: for each sentence, token sequences that its translation must contain, in any order.
      key: for sampling, one random key per sentence, or a single key, into which the index of each sentence is folded.
      shortlist: the words that a translation may use; None for all words.
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
        from the sources, do not fit into a translation, or are given for an empty source; keys without sampling, or not
        one per sentence; `nbest` beyond the beam; models, `search` and shortlist that do not belong together.
      TypeError: an argument is traced by `jit`, `grad` or `vmap`; `key` is not a random key.
    """
    if nbest is not None and not 1 <= nbest <= search.beam_size:
        raise ValueError(
            f"nbest is {nbest!r}: use 1 to {search.beam_size}, because a search returns at most beam_size hypotheses"
        )
    if key is not None and not search.sampling and strategy is None:
        raise ValueError("key without sampling: this search draws no samples; leave it out, or set sampling=True")
    call = _checked(params, cfg, search, sources, prefixes, phrases, key, shortlist, batching)
    sampled = search.sampling if strategy is None else strategy.draws
    results = [Translation((without_tokens(0.0, attention=attention, sampled=sampled),))] * len(sources)
    if progress is not None and (empty := len(sources) - sum(len(bucket.indices) for bucket in call.plan)):
        progress(empty)
    fast = tuple(
        _precompute(p, c) if _can_precompute(p, c) else p for p, c in zip(call.members, call.cfgs, strict=True)
    )
    # numbers are placed once, not copied to the device with each batch
    on = replicator((fast, jax.device_put(call.options)))

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        members, options = on(mesh)
        inputs = call.inputs(group, mesh)
        return generate(members, call.cfgs, options, strategy=strategy, attention=attention, mesh=mesh, **inputs)

    for i, (found, weights) in spread(call.plan, run, devices, progress):
        results[i] = Translation(_candidates(found, weights, len(call.read[i]) + 1, nbest), call.cuts[i])
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
      ValueError, TypeError: as `translate`.
    """
    members, cfgs, options = _checked_models(params, cfg, search, batching, (sources, targets))
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets: pass one target per source")
    read, cuts = _checked_sources(sources, members, cfgs)
    targets = as_ids("its target", targets)
    check_ids("its target", enumerate(targets), target_size(members, cfgs))
    results = [Translation((without_tokens(float("-inf"), attention=attention),), n) for n in cuts]
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
    for i, (found, weights) in spread(batches(longer, batching, among=fits), run, devices, progress):
        results[i] = Translation(_candidates(found, weights, len(read[i]) + 1), cuts[i])
    return results


class _Call(NamedTuple):
    """A checked call of `translate`.

    `read` are the source tokens that are read, `cuts` the numbers of those that are not, and `inputs` returns arguments
    of `generate` for batches of equal shape, one on each device of a mesh.
    """

    members: tuple[Params, ...]
    cfgs: tuple[ModelConfig, ...]
    options: SearchOptions
    plan: Sequence[Bucket]
    read: Sequence[np.ndarray]
    cuts: Sequence[int]
    inputs: Callable[[Sequence[Bucket], Mesh | None], dict[str, Any]]


def _checked(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    sources: Sequence[Tokens],
    prefixes: Sequence[Tokens] | None = None,
    phrases: Sequence[Sequence[Tokens]] | None = None,
    key: Key | np.ndarray | None = None,
    shortlist: Shortlist | None = None,
    batching: Batching = DEFAULT_BATCHING,
) -> _Call:
    """Check the arguments of `translate`, and plan its batches."""
    members, cfgs, options = _checked_models(params, cfg, search, batching, (sources, prefixes, phrases, key))
    if shortlist is not None and search.sampling:
        raise ValueError("shortlist with sampling: samples are drawn from the whole vocabulary; leave one out")
    read, cuts = _checked_sources(sources, members, cfgs)
    starts, required = as_required(prefixes, phrases, len(read))
    reads = any(c.reads_source for c in cfgs)
    most = partial(max_output_length, cfgs, search)
    for i, (source, prefix, wanted) in enumerate(zip(read, starts, required, strict=True)):
        needed, longest = len(prefix) + sum(map(len, wanted)), most(len(source) + 1)
        if needed > longest or (needed and reads and not len(source)):
            raise ValueError(
                f"sentence {i}: prefix and phrases have {needed} tokens, but its translation has at most {longest}, "
                "and none if its source is empty"
            )
    V = target_size(members, cfgs)
    check_ids("its prefix", enumerate(starts), V)
    check_ids("a phrase", ((i, phrase) for i, wanted in enumerate(required) for phrase in wanted), V)
    real = [i for i, source in enumerate(read) if len(source) or not reads]
    plan = batches([len(source) + 1 for source in read], batching, among=real)
    axes = Sizes(*map(max, astuple(sizes(starts, required)), astuple(batching.min_axes)))
    drawn = keys.on_host(key, len(read)) if search.sampling or key is not None else None
    select = None
    if shortlist is not None:
        shortlist.check(source_sizes(members, cfgs), V)
        allowed = [shortlist.words_for(*one, *wanted) for *one, wanted in zip(read, starts, required, strict=True)]
        select = selector(shortlist, plan, allowed, batching.word_sizes)

    def inputs(group: Sequence[Bucket], mesh: Mesh | None) -> dict[str, Any]:
        width = group[0].width
        places = [(device, i) for device, bucket in enumerate(group) for i in bucket.padded]
        indices = [i for _, i in places]
        selection = None if select is None else select(group)

        def ids(device: int, tokens: Tokens) -> Tokens:
            return tokens if selection is None else word_indices(selection, device, tokens)

        asked = request(
            [0 if i is None else most(len(read[i]) + 1) for i in indices],
            [() if i is None else ids(device, starts[i]) for device, i in places],
            [() if i is None else [ids(device, phrase) for phrase in required[i]] for device, i in places],
            None if drawn is None else keys.rows(drawn, indices),
            axes=axes,
        )
        rows = {"src": source_rows(read, indices, width), "request": asked, "selection": selection}
        return {"limit": most(width) + 1, **put(rows, mesh)}

    return _Call(members, cfgs, options, plan, read, cuts, inputs)


def _checked_models(
    params: Models, cfg: ModelConfigs, search: SearchConfig, batching: Batching, given: Any
) -> tuple[tuple[Params, ...], tuple[ModelConfig, ...], SearchOptions]:
    """Return the members, their configs and the options; reject other types, and traced values."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((params, given))):
        raise TypeError(
            "translate and score need concrete values, but an argument is traced by jit, grad or vmap: use beam_search "
            "there, and loss or force for scores that have gradients"
        )
    check_config(search, SearchConfig, name="search")
    check_config(batching, Batching, name="batching")
    options = search_options(search)
    return *members_of(params, cfg, options), options


def _checked_sources(
    sources: Sequence[Tokens], members: tuple[Params, ...], cfgs: tuple[ModelConfig, ...]
) -> tuple[list[np.ndarray], list[int]]:
    """Return the source tokens that fit into the models' positions, and the number that was truncated of each.

    Ids have to be in all source vocabularies, and not BOS, EOS or PAD. A language model reads no source.
    """
    found = as_ids("its source", sources)
    if words := source_sizes(members, cfgs):
        check_ids("its source", enumerate(found), min(words), BOS)
    room = min(c.max_source for c in cfgs) - 1
    return [ids[:room] for ids in found], [max(0, len(ids) - room) for ids in found]


def without_tokens(score: float, *, attention: bool, sampled: bool = False) -> Candidate:
    """Return the candidate of an empty source, with score 0, or of a sentence that cannot be scored, with -inf."""
    none = np.zeros(0, np.float32)
    weights = none.reshape(0, 0) if attention else None
    return Candidate(np.zeros(0, np.int32), score, none, weights, none if sampled else None)


def _candidates(
    found: Hypotheses, weights: np.ndarray | None, source_length: int, nbest: int | None = None
) -> tuple[Candidate, ...]:
    """Return the finished hypotheses [W, ...] of a sentence, best first; if there are none, one with score -inf.

    Their arrays are copies, because views would keep the arrays of the whole batch in memory. `weights` [W, T, S] is
    their attention, and `source_length` includes the end symbol.
    """
    drawn = found.sampler_log_probs
    finished = [(w, n) for w, n in enumerate(found.lengths) if n > 0]
    candidates = [
        Candidate(
            np.array(found.tokens[w, : n - 1]),
            float(found.scores[w]),
            np.array(found.token_scores[w, :n]),
            None if weights is None else np.array(weights[w, :n, :source_length]),
            None if drawn is None else np.array(drawn[w, :n]),
        )
        for w, n in finished[:nbest]
    ]
    none = without_tokens(float("-inf"), attention=weights is not None, sampled=drawn is not None)
    return tuple(candidates) or (none,)


def _can_precompute(params: Params, cfg: ModelConfig) -> bool:
    return not isinstance(params, PrecomputedParams) and cfg.decoder.functions.precompute is not None


_precompute = jax.jit(conversion.precompute, static_argnums=1)
