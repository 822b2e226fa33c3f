"""Scores of given targets as one differentiable function."""

from jax import Array

from convs2s_jax.models.checks import check_pairs
from convs2s_jax.search import generate
from convs2s_jax.search.checks import ModelConfigs, Models, members_of
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.numbers import Numbers, checked_numbers, numbers_of
from convs2s_jax.search.structure import structure_of


def force(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig,
    src: Array,
    tgt: Array,
    *,
    numbers: Numbers | None = None,
    attention: bool = False,
) -> tuple[Hypotheses, Array | None]:
    """Score given targets of one batch, with the scores that the search would report. This is `score` for arrays.

    It works under `jit`, `grad` and `vmap`, with respect to parameters and `numbers`.

    Args:
      params, cfg: as in `translate`.
      search: temperature, penalties and normalisation. Under `jit`, `search` and `cfg` are static.
      src: [B, S] token ids with the end symbol, then PAD.
      tgt: [B, L] token ids with the end symbol, then PAD; a row with only PAD has score -inf.
      numbers: penalties and temperature that replace those of `search`.
      attention: whether to return the attention weights.

    Returns:
      Hypotheses [B, 1, L], and the attention [B, 1, L, S] behind each symbol or None.

    Raises:
      ValueError, TypeError: arrays, models or options that do not fit together.
    """
    members, cfgs = members_of(params, cfg, search)
    check_pairs(src, tgt)
    numbers = numbers_of(search) if numbers is None else checked_numbers(numbers, search)
    return generate.force(members, cfgs, structure_of(search), numbers, src, tgt, attention=attention)
