"""The models that `translate`, `score` and `force` are given: one, an ensemble, or either with a language model."""

from collections.abc import Sequence
from functools import lru_cache

import jax
from jax.tree_util import PyTreeDef
from jax.typing import DTypeLike

from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.checks import check_config, check_params
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.search.options import SearchOptions

Models = Params | Sequence[Params]
ModelConfigs = ModelConfig | Sequence[ModelConfig]


def members_of(
    params: Models, cfg: ModelConfigs, options: SearchOptions
) -> tuple[tuple[Params, ...], tuple[ModelConfig, ...]]:
    """Return the parameters and configs of all members of an ensemble, including the language model, as tuples.

    Raises:
      ValueError, TypeError: the numbers of parameters and configs differ, or their types are wrong; an `lm_weight`
        without a language model, or the reverse; a coverage penalty with a model that has no attention.
    """
    members = tuple(params) if isinstance(params, tuple | list) else (params,)
    cfgs = tuple(cfg) if isinstance(cfg, tuple | list) else (cfg,)
    for model in cfgs:
        check_config(model, ModelConfig)
    if len(members) != len(cfgs) or not members:
        raise ValueError(f"params has {len(members)} entries and cfg {len(cfgs)}: pass one config for each model")
    if options.lm_weight is None and len({c.reads_source for c in cfgs}) > 1:
        raise ValueError("lm_weight is 0, but one of the models is a language model: set its weight, or leave it out")
    if options.lm_weight is not None and len(members) == 1:
        raise ValueError(
            f"lm_weight is {options.lm_weight}, but there is only one model: pass the language model as the last one"
        )
    if options.lm_weight is not None and cfgs[-1].reads_source:
        raise ValueError(
            f"lm_weight is {options.lm_weight}, but the last model reads a source: pass a language model there"
        )
    reading = [model for model in cfgs if model.reads_source]
    if options.coverage_penalty is not None and not (reading and all(model.attends for model in reading)):
        raise ValueError(
            f"coverage_penalty is {options.coverage_penalty}, but a model has no attention to cover the source: use 0"
        )
    return members, cfgs


def source_sizes(members: Sequence[Params], cfgs: Sequence[ModelConfig]) -> list[int]:
    """Return the number of source words of each model that reads a source."""
    found = []
    for params, cfg in zip(members, cfgs, strict=True):
        if cfg.reads_source:
            check_params(params, Params)
            found.append(len(encoder_decoder.with_shared_table(params, cfg).encoder.embedding.table))
    return found


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


@lru_cache(maxsize=64)
def _output_size(cfg: ModelConfig, tree: PyTreeDef, leaves: tuple[tuple[tuple[int, ...], DTypeLike], ...]) -> int:
    """`target_size` of one model with parameters of these shapes. Tracing takes milliseconds of each call otherwise."""
    params = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return len(jax.eval_shape(lambda params: encoder_decoder.output_layer(params, cfg, cfg.dtype), params).b)
