"""Checks of the arguments of `translate` and `score`, which would otherwise give plausible but wrong results."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef
from jax.typing import DTypeLike

from convs2s_jax.core.rows import Tokens
from convs2s_jax.core.tokens import BOS, EOS, PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config, check_params
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.request import as_ids, check_ids, is_list
from convs2s_jax.search.shortlist import Shortlist

Models = Params | Sequence[Params]
ModelConfigs = ModelConfig | Sequence[ModelConfig]


def members_of(
    params: Models, cfg: ModelConfigs, search: SearchConfig
) -> tuple[tuple[Params, ...], tuple[ModelConfig, ...]]:
    """Return the parameters and configs of all members of an ensemble, including the language model, as tuples.

    Raises:
      ValueError, TypeError: the numbers of parameters and configs differ, or their types are wrong; `search.lm_weight`
        without a language model, or the reverse; a coverage penalty with a model that has no attention.
    """
    members = tuple(params) if isinstance(params, tuple | list) else (params,)
    cfgs = tuple(cfg) if isinstance(cfg, tuple | list) else (cfg,)
    check_config(search, SearchConfig, name="search")
    for model in cfgs:
        check_config(model, ModelConfig)
    if len(members) != len(cfgs) or not members:
        raise ValueError(f"params has {len(members)} entries and cfg {len(cfgs)}: pass one config for each model")
    if search.lm_weight and len(members) == 1:
        raise ValueError(
            f"lm_weight is {search.lm_weight}, but there is only one model: pass the language model as the last one"
        )
    if search.lm_weight and cfgs[-1].reads_source:
        raise ValueError(
            f"lm_weight is {search.lm_weight}, but the last model reads a source: pass a language model there"
        )
    if not search.lm_weight and len({c.reads_source for c in cfgs}) > 1:
        raise ValueError("lm_weight is 0, but one of the models is a language model: set its weight, or leave it out")
    reading = [model for model in cfgs if model.reads_source]
    if search.coverage_penalty and not (reading and all(model.attends for model in reading)):
        raise ValueError(
            f"coverage_penalty is {search.coverage_penalty}, but a model has no attention to cover the source: use 0"
        )
    return members, cfgs


@lru_cache(maxsize=64)
def _output_size(cfg: ModelConfig, tree: PyTreeDef, leaves: tuple[tuple[tuple[int, ...], DTypeLike], ...]) -> int:
    """`target_size` of one model with parameters of these shapes. Tracing takes milliseconds of each call otherwise."""
    params = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return len(jax.eval_shape(lambda params: encoder_decoder.output_layer(params, cfg, cfg.dtype), params).b)


def check_untraced(params: Any, *sequences: Any) -> None:
    """Reject arguments traced by `jit`, `grad` or `vmap`: batching needs concrete values.

    Raises:
      TypeError: parameters, sequences of ids, or an array of all of them are traced.
    """
    wholes = (*jax.tree.leaves(params), *sequences)  # checked first, so that no tracer is iterated over
    if any(isinstance(x, jax.core.Tracer) for x in chain(wholes, chain.from_iterable(filter(is_list, sequences)))):
        raise TypeError(
            "translate and score need concrete values, but params or sequences are traced by jit, grad or vmap: use "
            "beam_search there, and loss or force for scores that have gradients"
        )


def checked_sources(
    sources: Sequence[Tokens], members: tuple[Params, ...], cfgs: tuple[ModelConfig, ...]
) -> list[np.ndarray]:
    """Return the sources as arrays, after checking that their ids are in all source vocabularies, not BOS, EOS or PAD.

    The parameters are not checked if there are no tokens. A language model reads no source.

    Raises:
      ValueError, TypeError: see `as_ids`, `check_ids` and `check_params`.
    """
    found = as_ids("its source", sources)
    if any(cfg.reads_source for cfg in cfgs) and any(map(len, found)):
        check_ids("its source", found, min(source_sizes(members, cfgs)), refused=(BOS, PAD, EOS))
    return found


def check_shortlist(
    shortlist: Shortlist, members: Sequence[Params], cfgs: Sequence[ModelConfig], target_words: int
) -> None:
    """Reject a shortlist of another vocabulary.

    Raises:
      ValueError: its vocabularies do not have the sizes of those of the models.
      TypeError: see `check_params`.
    """
    if shortlist.size != target_words:
        raise ValueError(
            f"the shortlist is for {shortlist.size} target words, but the models have {target_words}: use one for "
            "their vocabulary"
        )
    words = len(shortlist.offsets) - 1
    other = [size for size in source_sizes(members, cfgs) if size != words]
    if len(shortlist.words) and other:
        raise ValueError(
            f"the shortlist is for {words} source words, but a model has {other[0]}: use one for its vocabulary"
        )


def source_sizes(members: Sequence[Params], cfgs: Sequence[ModelConfig]) -> list[int]:
    """Return the number of source words of each model that reads a source.

    Raises:
      TypeError: see `check_params`.
    """
    found = []
    for params, cfg in zip(members, cfgs, strict=True):
        if cfg.reads_source:
            check_params(params, Params)
            found.append(len(encoder_decoder.with_shared_table(params, cfg).encoder.embedding.table))
    return found


def check_required(
    sources: Sequence[np.ndarray],
    prefixes: Sequence[Tokens],
    phrases: Sequence[Sequence[Tokens]],
    most: Sequence[int],
    *,
    reads: bool,
) -> None:
    """Reject prefixes and phrases that no translation can have.

    Args:
      sources: token ids.
      prefixes, phrases: required tokens of each translation.
      most: maximum number of tokens of each translation.
      reads: whether the models read sources, so that the translation of an empty one is empty.

    Raises:
      ValueError: there is not one of each per source, there are more tokens than a translation may have, or there are
        any for an empty source.
    """
    count = len(sources)
    if len(prefixes) != count or len(phrases) != count:
        raise ValueError(
            f"got {count} sources, {len(prefixes)} prefixes and {len(phrases)} lists of phrases: pass one of each per "
            "source"
        )
    for i, (source, prefix, wanted, room) in enumerate(zip(sources, prefixes, phrases, most, strict=True)):
        needed = len(prefix) + sum(len(phrase) for phrase in wanted)
        if needed > room:
            raise ValueError(
                f"sentence {i}: prefix and phrases have {needed} tokens, but its translation has at most {room}"
            )
        if needed and reads and not len(source):
            raise ValueError(
                f"sentence {i}: its source is empty, so its translation is empty too: leave out its prefix and phrases"
            )


def target_size(members: Sequence[Params], cfgs: Sequence[ModelConfig]) -> int:
    """Return V, the number of words that the decoders score.

    Raises:
      ValueError: the members of the ensemble have different ones.
      TypeError: see `check_params`.
    """
    sizes = []
    for params, cfg in zip(members, cfgs, strict=True):
        check_params(params, Params)
        leaves, tree = jax.tree.flatten(params)
        sizes.append(_output_size(cfg, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)))
    if len(set(sizes)) > 1:
        raise ValueError(f"the models have {sizes} target words: an ensemble needs a common target vocabulary")
    return sizes[0]
