"""The options of a search as one pytree, derived from a `SearchConfig`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.models.checks import check_config
from convs2s_jax.nn import struct
from convs2s_jax.search.config import LengthPenaltyKind, SearchConfig, Stop

Scalar = Array | np.ndarray | np.floating | np.int32


@struct.dataclass
class SearchOptions:
    """The options of a search. The names and meanings are those of the fields of `SearchConfig`.

    Numbers are traced: another value does not recompile, and they work with `jax.vmap` and `jax.grad`. An option that
    is off is None, which belongs to the structure of the tree, as the static fields do.

    Attributes:
      beam_size, stop, length_penalty_kind, no_repeat_ngram, sampling, top_k: static.
      temperature, unk_penalty, min_length: numbers; `min_length` is int32, the others are float32, or float64 under
        `jax_enable_x64`.
      length_penalty: the exponent of the length; None to rank by the plain sum.
      coverage_penalty, lm_weight, top_p: numbers; None where the option is off.
    """

    beam_size: int = struct.field(pytree_node=False)
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
    top_p: Scalar | None


def search_options(cfg: SearchConfig) -> SearchOptions:
    """Return the options of a `SearchConfig`; change numbers with `search_options(cfg).replace(temperature=...)`."""
    optional = {
        "length_penalty": cfg.normalize,
        "coverage_penalty": cfg.coverage_penalty > 0,
        "lm_weight": cfg.lm_weight > 0,
        "top_p": cfg.top_p < 1,
    }
    real = jnp.result_type(float).type
    return SearchOptions(
        beam_size=cfg.beam_size,
        stop=cfg.stop,
        length_penalty_kind=cfg.length_penalty_kind,
        no_repeat_ngram=cfg.no_repeat_ngram,
        sampling=cfg.sampling,
        top_k=cfg.top_k,
        temperature=real(cfg.temperature),
        unk_penalty=real(cfg.unk_penalty),
        min_length=np.int32(cfg.min_length),
        **{name: real(getattr(cfg, name)) if on else None for name, on in optional.items()},
    )


def in_dtype(options: SearchOptions, dtype: Any) -> SearchOptions:
    """Return the options with their real numbers in the dtype of the scores."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), options).replace(min_length=options.min_length)


def checked_options(search: SearchConfig | SearchOptions) -> SearchOptions:
    """Return the options of a config, or given ones as they are. Raises TypeError for another type."""
    if isinstance(search, SearchOptions):
        return search
    check_config(search, SearchConfig, name="search")
    return search_options(search)


def same_program(one: SearchConfig, other: SearchConfig) -> bool:
    """Return whether two searches differ in traced numbers only, so that neither compiles what the other has."""
    structures: list[Any] = [jax.tree.structure(search_options(cfg)) for cfg in (one, other)]
    return bool(structures[0] == structures[1])
