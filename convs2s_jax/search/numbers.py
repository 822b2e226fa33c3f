"""The traced options of a search. New values do not recompile, and they work with `jax.vmap` and `jax.grad`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn import struct
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.structure import Structure, structure_of

Scalar = Array | np.float32 | np.int32


@struct.dataclass
class Numbers:
    """The traced part of a search's options, as scalars. Their meaning is that of the fields of `SearchConfig`.

    `Structure` decides which of them are used.

    Attributes:
      length_penalty: the exponent of the length.
      coverage_penalty: weight of the coverage term in the scores.
      temperature: logits are divided by it.
      unk_penalty: nats subtracted for each unknown symbol.
      lm_weight: weight of the language model's log-probability.
      diverse_strength: penalty in nats for each time that an earlier group chose a token.
      top_p: total probability of the symbols that samples are drawn from.
      min_length: int32, minimum number of tokens before the end symbol.
    """

    length_penalty: Scalar
    coverage_penalty: Scalar
    temperature: Scalar
    unk_penalty: Scalar
    lm_weight: Scalar
    diverse_strength: Scalar
    top_p: Scalar
    min_length: Scalar


def numbers_of(cfg: SearchConfig) -> Numbers:
    """Return the traced part of a `SearchConfig`."""
    return Numbers(
        length_penalty=np.float32(cfg.length_penalty),
        coverage_penalty=np.float32(cfg.coverage_penalty),
        temperature=np.float32(cfg.temperature),
        unk_penalty=np.float32(cfg.unk_penalty),
        lm_weight=np.float32(cfg.lm_weight),
        diverse_strength=np.float32(cfg.diverse_strength),
        top_p=np.float32(cfg.top_p),
        min_length=np.int32(cfg.min_length),
    )


class _Switch(NamedTuple):
    """When a number is used that not all searches use.

    Attributes:
      is_on: whether the static options use it.
      remedy: what to set so that they do.
      of_strategy: whether only the strategy reads it.
    """

    is_on: Callable[[Structure], bool]
    remedy: str
    of_strategy: bool = False


_SWITCHES: Mapping[str, _Switch] = {
    "length_penalty": _Switch(lambda structure: structure.length_penalty != "none", "normalize=True"),
    "coverage_penalty": _Switch(lambda structure: structure.coverage, "a coverage_penalty above 0"),
    "lm_weight": _Switch(lambda structure: structure.language_model, "an lm_weight above 0"),
    "diverse_strength": _Switch(lambda structure: structure.groups > 1, "diverse_groups above 1", of_strategy=True),
    "top_p": _Switch(lambda structure: structure.nucleus, "sampling=True and a top_p below 1", of_strategy=True),
}


def checked_numbers(numbers: Any, cfg: SearchConfig, *, own_strategy: bool = False) -> Numbers:
    """Return `numbers` in the dtypes of `numbers_of`, after checking that the static part of the options uses them.

    Traced values are not checked: they have to be within the bounds of `SearchConfig`. Whether a number is used is not
    checked for those that a custom strategy may use.

    Raises:
      ValueError: a number has axes or is out of bounds, or the search does not use it and it differs from that of
        `cfg`.
      TypeError: `numbers` is not a `Numbers`, or a value is not a number, or not an integer where one is expected.
    """
    if not isinstance(numbers, Numbers):
        raise TypeError(f"numbers is a {type(numbers).__name__}: expected what `numbers_of` returns")
    own, structure = numbers_of(cfg), structure_of(cfg)
    cast = {field.name: _cast(field.name, getattr(numbers, field.name), own) for field in dataclasses.fields(Numbers)}
    for name in cast:
        given = getattr(numbers, name)
        if isinstance(given, jax.core.Tracer) or _plain(given) == _plain(getattr(own, name)):
            continue
        switch = _SWITCHES.get(name)
        if switch and switch.of_strategy and own_strategy:
            continue
        if switch and not switch.is_on(structure):
            raise ValueError(
                f"numbers.{name} is {_plain(given)}, but this search does not use it: set {switch.remedy} in `search`"
            )
        try:
            dataclasses.replace(cfg, **{name: _plain(given)})  # type: ignore[arg-type]  # a number for a number
        except UserError as error:
            raise ValueError(f"numbers.{error}") from error
    return Numbers(**cast)


def _plain(value: Any) -> int | float:
    """Return a number that is not traced as Python's, with the digits that are printed: 0.1, also in 32 bits."""
    one = np.asarray(value)[()]
    return int(one) if jnp.issubdtype(one.dtype, jnp.integer) else float(str(one))


def _cast(name: str, value: Any, like: Numbers) -> Scalar:
    """Return a number in the dtype of the same one in `like`."""
    value = value if isinstance(value, Array) else np.asarray(value)
    dtype = getattr(like, name).dtype
    if value.ndim:
        raise ValueError(f"numbers.{name} has shape {value.shape}: pass one number, or map with jax.vmap")
    is_whole = jnp.issubdtype(dtype, jnp.integer)
    kinds, what = ((jnp.integer,), "an integer") if is_whole else ((jnp.integer, jnp.floating), "a number")
    if not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
        raise TypeError(f"numbers.{name} is {value} of {value.dtype}: expected {what}")
    return value.astype(dtype) if isinstance(value, Array) else dtype.type(value)
