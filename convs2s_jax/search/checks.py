"""Checks of what a caller hands to `translate` and `score`: one sentence in place of numbers that look right."""

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

Models = Params | tuple[Params, ...]
ModelConfigs = ModelConfig | tuple[ModelConfig, ...]


def members_of(
    params: Models, cfg: ModelConfigs, search: SearchConfig
) -> tuple[tuple[Params, ...], tuple[ModelConfig, ...]]:
    """The members of an ensemble, be it of one, and the language model.

    Raises:
      ValueError, TypeError: not one config for each, other records, `search.lm_weight` without a language model, or the
        reverse, or a coverage penalty where a model has no attention to cover the source.
    """
    members = params if isinstance(params, tuple) else (params,)
    cfgs = cfg if isinstance(cfg, tuple) else (cfg,)
    if isinstance(params, list) or isinstance(cfg, list):
        raise TypeError("params or cfg is a list: those of an ensemble are tuples, one entry for each model")
    check_config(search, SearchConfig, name="search")
    for model in cfgs:
        check_config(model, ModelConfig)
    if len(members) != len(cfgs) or not members:
        raise ValueError(f"there are {len(members)} parameters and {len(cfgs)} models: each needs one")
    if search.lm_weight and len(members) == 1:
        raise ValueError(
            f"lm_weight is {search.lm_weight}, and there is one model: give the language model as the last"
        )
    if search.lm_weight and cfgs[-1].reads_source:
        raise ValueError(
            f"lm_weight is {search.lm_weight}, and the last model reads a source: give a language model there"
        )
    if not search.lm_weight and len({c.reads_source for c in cfgs}) > 1:
        raise ValueError("lm_weight is 0, and a language model is among the models: give it a weight, or leave it out")
    reading = [model for model in cfgs if model.reads_source]
    if search.coverage_penalty and not (reading and all(model.attends for model in reading)):
        raise ValueError(
            f"coverage_penalty is {search.coverage_penalty}, and a model has no attention to cover the source: use 0"
        )
    return members, cfgs


def check_untraced(params: Any, *sequences: Any) -> None:
    """Refuse what `jit`, `grad` or `vmap` trace: batches are made of values.

    Raises:
      TypeError: parameters, sequences of ids, or all of them in one array are traced.
    """
    wholes = (*jax.tree.leaves(params), *sequences)  # looked at first: what is traced is not iterated over
    if any(isinstance(x, jax.core.Tracer) for x in chain(wholes, chain.from_iterable(sequences))):
        raise TypeError(
            "translate and score read values, and jit, grad or vmap trace params or sequences: use beam_search there, "
            "and loss or force for scores that have gradients"
        )


def checked_sources(
    sources: Sequence[Tokens], members: tuple[Params, ...], cfgs: tuple[ModelConfig, ...]
) -> list[np.ndarray]:
    """The sources as arrays, if they are ids of the source vocabulary other than begin, end and padding.

    Where there is no token, the parameters are not looked at; a language model reads no source.

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
    """Refuse prefixes and phrases that no translation can have.

    Args:
      sources: token ids.
      prefixes, phrases: what is required.
      most: most tokens of each translation.
      reads: whether the models read sources, so that the translation of an empty one is empty.

    Raises:
      ValueError: not one for each source, more tokens than a translation may have, or any for an empty source.
    """
    count = len(sources)
    if len(prefixes) != count or len(phrases) != count:
        raise ValueError(f"{count} sources, {len(prefixes)} prefixes, {len(phrases)} lists of phrases: use as many")
    for i, (source, prefix, wanted, room) in enumerate(zip(sources, prefixes, phrases, most, strict=True)):
        needed = len(prefix) + sum(len(phrase) for phrase in wanted)
        if needed > room:
            raise ValueError(f"sentence {i}: prefix and phrases have {needed} tokens, its translation at most {room}")
        if needed and reads and not len(source):
            raise ValueError(f"sentence {i}: its source is empty, and so is its translation: require nothing of it")


def target_size(params: Params, cfg: ModelConfig) -> int:
    """V, the number of words that the decoder scores."""
    check_params(params, Params)
    return len(jax.eval_shape(lambda p: encoder_decoder.output_layer(p, cfg, cfg.dtype), params).b)
