"""The options of a search as one pytree, derived from a `SearchConfig`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.errors import UserError
from convs2s_jax.models.checks import check_config
from convs2s_jax.nn import struct
from convs2s_jax.search.config import LengthPenaltyKind, SearchConfig, Stop

Scalar = Array | np.ndarray | np.float32 | np.int32
_ALWAYS = ("temperature", "unk_penalty", "min_length")
_NUMBERS = (*_ALWAYS, "length_penalty", "coverage_penalty", "lm_weight", "diverse_strength", "top_p")


@struct.dataclass
class SearchOptions:
    """The options of a search. The names and meanings are those of the fields of `SearchConfig`.

    Numbers are traced: another value does not recompile, and they work with `jax.vmap` and `jax.grad`. An option that
    is off is None, which belongs to the structure of the tree, as the other fields do. These are static.

    Attributes:
      beam_size: static; W, number of hypotheses kept alive and returned for each sentence, over all groups.
      groups: static; G, number of groups of hypotheses (`diverse_groups`).
      stop, length_penalty_kind, no_repeat_ngram, sampling, top_k: static.
      length_penalty: the exponent of the length; None to rank by the plain sum.
      coverage_penalty: weight of the coverage term in the scores; None for none.
      temperature: logits are divided by it.
      unk_penalty: nats subtracted for each unknown symbol.
      min_length: int32, minimum number of tokens before the end symbol.
      lm_weight: weight of the language model's log-probability; None without a language model.
      diverse_strength: penalty in nats for each time that an earlier group chose a token; None with one group.
      top_p: total probability of the symbols that samples are drawn from; None for all symbols.
    """

    beam_size: int = struct.field(pytree_node=False)
    groups: int = struct.field(pytree_node=False)
    stop: Stop = struct.field(pytree_node=False)
    length_penalty_kind: LengthPenaltyKind = struct.field(pytree_node=False)
    no_repeat_ngram: int = struct.field(pytree_node=False)
    sampling: bool = struct.field(pytree_node=False)
    top_k: int = struct.field(pytree_node=False)
    temperature: Scalar
    unk_penalty: Scalar
    min_length: Scalar
    length_penalty: Scalar | None
    coverage_penalty: Scalar | None
    lm_weight: Scalar | None
    diverse_strength: Scalar | None
    top_p: Scalar | None

    @property
    def group_size(self) -> int:
        """H, number of hypotheses kept alive in each group."""
        return self.beam_size // self.groups


def search_options(cfg: SearchConfig) -> SearchOptions:
    """Return the options of a `SearchConfig`; change numbers with `search_options(cfg).replace(temperature=...)`."""
    return SearchOptions(
        beam_size=cfg.beam_size,
        groups=cfg.diverse_groups,
        stop=cfg.stop,
        length_penalty_kind=cfg.length_penalty_kind,
        no_repeat_ngram=cfg.no_repeat_ngram,
        sampling=cfg.sampling,
        top_k=cfg.top_k,
        temperature=np.float32(cfg.temperature),
        unk_penalty=np.float32(cfg.unk_penalty),
        min_length=np.int32(cfg.min_length),
        length_penalty=np.float32(cfg.length_penalty) if cfg.normalize else None,
        coverage_penalty=np.float32(cfg.coverage_penalty) if cfg.coverage_penalty > 0 else None,
        lm_weight=np.float32(cfg.lm_weight) if cfg.lm_weight > 0 else None,
        diverse_strength=np.float32(cfg.diverse_strength) if cfg.diverse_groups > 1 else None,
        top_p=np.float32(cfg.top_p) if cfg.top_p < 1 else None,
    )


def checked_options(search: SearchConfig | SearchOptions) -> SearchOptions:
    """Return the options of a config, or given ones in their dtypes. The values of traced numbers are not checked.

    Raises:
      ValueError: a number has axes, or is not of its kind or out of the bounds of `SearchConfig`.
      TypeError: another type.
    """
    if not isinstance(search, SearchOptions):
        check_config(search, SearchConfig, name="search")
        return search_options(search)
    numbers = {name: getattr(search, name) for name in _NUMBERS}
    given = {name: x for name, x in numbers.items() if x is not None or name in _ALWAYS}
    for name, x in given.items():
        if np.ndim(x):
            raise ValueError(f"search.{name} has shape {np.shape(x)}: pass one number, or map with jax.vmap")
    try:
        plain = {name: _plain(x) for name, x in given.items() if not isinstance(x, jax.core.Tracer)}
        SearchConfig(sampling=search.top_p is not None, **plain)
    except UserError as error:
        raise ValueError(f"search.{error}") from error
    cast: dict[str, Any] = {}
    for name, x in given.items():
        cast[name] = (x if isinstance(x, Array) else np.asarray(x)).astype(
            np.int32 if name == "min_length" else np.float32
        )
    return dataclasses.replace(search, **cast)


def _plain(value: Any) -> Any:
    """Return a number as Python's, with the digits that are printed: 0.1, also in 32 bits."""
    one = np.asarray(value)
    return float(str(one)) if jnp.issubdtype(one.dtype, jnp.floating) else one.item()
