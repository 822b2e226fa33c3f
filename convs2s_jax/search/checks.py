"""Checks of the arguments of `translate` and `score`, which would otherwise give plausible but wrong results."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.rows import Tokens
from convs2s_jax.core.tokens import BOS, EOS, PAD
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config, check_params
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.request import as_ids, check_ids

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


def check_untraced(params: Any, *sequences: Any) -> None:
    """Reject arguments traced by `jit`, `grad` or `vmap`: batching needs concrete values.

    Raises:
      TypeError: parameters, sequences of ids, or an array of all of them are traced.
    """
    wholes = (*jax.tree.leaves(params), *sequences)  # checked first, so that no tracer is iterated over
    if any(isinstance(x, jax.core.Tracer) for x in chain(wholes, chain.from_iterable(sequences))):
        raise TypeError(
            "translate and score need concrete values, but params or sequences are traced by jit, grad or vmap: use "
            "beam_search there, and loss or force for scores that have gradients"
        )


def checked_sources(
    sources: Sequence[Tokens], members: tuple[Params, ...], cfgs: tuple[ModelConfig, ...]
) -> list[np.ndarray]:
    """Return the sources as arrays, after checking that their ids are in the source vocabulary and not BOS, EOS or PAD.

    The parameters are not checked if there are no tokens. A language model reads no source.

    Raises:
      ValueError, TypeError: see `as_ids`, `check_ids` and `check_params`.
    """
    found = as_ids("its source", sources)
    reading = [(params, cfg) for params, cfg in zip(members, cfgs, strict=True) if cfg.reads_source]
    if reading and any(map(len, found)):
        params, cfg = reading[0]
        check_params(params, Params)
        table = encoder_decoder.with_shared_table(params, cfg).encoder.embedding.table
        check_ids("its source", found, len(table), refused=(BOS, PAD, EOS))
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


def target_size(params: Params, cfg: ModelConfig) -> int:
    """Return V, the number of words that the decoder scores."""
    check_params(params, Params)
    return len(jax.eval_shape(lambda p: encoder_decoder.output_layer(p, cfg, cfg.dtype), params).b)
