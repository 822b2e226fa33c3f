"""Translation of sentences: batching, devices, and results in the order of the sentences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.rows import Tokens, pad_rows
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params, PrecomputedParams
from convs2s_jax.models.table import FAST_DECODERS
from convs2s_jax.nn.types import Key
from convs2s_jax.search.buckets import DEFAULT_BATCHING, Batching, Bucket, batches, numbered
from convs2s_jax.search.call import checked_call
from convs2s_jax.search.candidates import Translation, candidates_of, without_tokens
from convs2s_jax.search.checks import ModelConfigs, Models, check_untraced, checked_sources, members_of, target_size
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.generate import force, generate
from convs2s_jax.search.numbers import numbers_of
from convs2s_jax.search.request import as_ids, check_ids
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.search.sources import source_rows, truncated
from convs2s_jax.search.spread import grouped, put, replicator, spread
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
    call = checked_call(
        params,
        cfg,
        search,
        sources,
        prefixes=prefixes,
        phrases=phrases,
        key=key,
        shortlist=shortlist,
        nbest=nbest,
        attention=attention,
        batching=batching,
    )
    results = [Translation((without_tokens(0.0, attention=attention),))] * len(sources)
    if progress is not None and (empty := len(sources) - sum(len(bucket.indices) for bucket in call.plan)):
        progress(empty)
    members = call.members
    if call.plan:  # otherwise there may be no parameters
        members = tuple(_precomputed(member, c) for member, c in zip(members, call.cfgs, strict=True))
    # numbers are placed once, not copied to the device with each batch
    on = replicator((members, jax.device_put(numbers_of(search))))

    def run(group: Sequence[Bucket], mesh: Mesh | None) -> Any:
        return call.pass_to(generate, *on(mesh), group, mesh)

    for i, found, weights in spread(call.plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, len(call.sources[i]) + 1, nbest=nbest), call.cuts[i])
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
    call = checked_call(params, cfg, search, sources, key=key)
    if not call.plan:
        return {}
    found: dict[tuple[int, ...], Callable[[], jax.stages.Lowered]] = {}
    fast = params
    if _can_precompute(params, cfg):
        found[()] = partial(_precompute.lower, params, cfg)
        fast = jax.eval_shape(partial(_precompute, cfg=cfg), params)
    mesh, groups = grouped(call.plan, devices)
    numbers = replicator(jax.device_put(numbers_of(search)))(mesh)
    where = jax.tree.leaves(params)[0].sharding if mesh is None else NamedSharding(mesh, P())
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), fast)
    for group in groups:
        found.setdefault(
            (len(group), *group[0].shape),
            partial(call.pass_to, generate.lower, (placed,), numbers, group, mesh),
        )
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
    members, cfgs = members_of(params, cfg, search)
    check_config(batching, Batching, name="batching")
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets: pass one target per source")
    check_untraced(params, sources, targets)
    sources, targets = checked_sources(sources, members, cfgs), as_ids("its target", targets)
    check_ids("its target", targets, target_size(members, cfgs))
    read, cuts = truncated(sources, cfgs)
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
    plan = numbered(batches([max(lengths[i], len(targets[i]) + 1) for i in fits], batching), fits)
    for i, found, weights in spread(plan, run, devices, progress):
        results[i] = Translation(candidates_of(found, weights, lengths[i]), cuts[i])
    return results


def _precomputed(params: Params, cfg: ModelConfig) -> Params:
    """Return parameters for decoding token by token, computed here unless the caller has done so."""
    return _precompute(params, cfg) if _can_precompute(params, cfg) else params


def _can_precompute(params: Params, cfg: ModelConfig) -> bool:
    return not isinstance(params, PrecomputedParams) and cfg.decoder.kind in FAST_DECODERS


_precompute = jax.jit(encoder_decoder.precompute, static_argnums=1)
