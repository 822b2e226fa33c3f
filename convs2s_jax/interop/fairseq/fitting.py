"""Convert tensors with fairseq's names to our parameters, and report by name those that do not fit."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.trees import path_of

_LISTED = 5
_TABLE = "decoder.embed_tokens.weight"


class Place(NamedTuple):
    """How fairseq stores a parameter.

    Attributes:
      name: fairseq's name of the tensor.
      shape: fairseq's shape.
      convert: converts fairseq's array to ours.
      back: converts our array to fairseq's.
    """

    name: str
    shape: tuple[int, ...]
    convert: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


def fitted(
    cfg: ModelConfig,
    tensors: Mapping[str, Any],
    place: Callable[[str, tuple[int, ...]], Place],
    *,
    output: str,
    spare: Collection[str],
) -> Params:
    """Build the parameters of a model, in their trained form, from `tensors`.

    Args:
      cfg: the model. Vocabulary sizes are taken from the embedding tables.
      tensors: arrays by fairseq's names.
      place: (path of a parameter, such as 'decoder/blocks/0/...', and its shape) -> its place.
      output: name of the softmax layer's kernel, which may be present even if it is tied to the table.
      spare: names that are ignored if present.

    Raises:
      UserError: names the tensors that are missing, misshapen or surplus, or a tied kernel that differs from the table.
    """
    used, told = set(spare), []
    copies = _copies(cfg, output)
    used |= set(copies)
    source = "decoder" if cfg.share_embeddings else "encoder"
    sizes = {"source_vocabulary": _rows(tensors, source), "target_vocabulary": _rows(tensors, "decoder")}
    abstract = jax.eval_shape(
        lambda key: encoder_decoder.split(encoder_decoder.init(key, cfg, **sizes), cfg), jax.random.key(0)
    )

    def read(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        at = place(path_of(path), leaf.shape)
        used.add(at.name)
        if at.name not in tensors:
            told.append(f"{at.name} is missing")
            return leaf
        value = np.asarray(tensors[at.name])
        if value.shape != at.shape:
            told.append(f"{at.name} has shape {value.shape}, expected {at.shape}")
            return leaf
        if value.dtype.kind != "f":
            told.append(f"{at.name} contains integers, expected floating-point numbers")
            return leaf
        return jax.device_put(at.convert(value))

    params: Params = jax.tree_util.tree_map_with_path(read, abstract)
    told += [f"{name} has no counterpart in the model" for name in sorted(set(tensors) - used)]
    told += _different(tensors, copies)
    if told:
        more = f"; and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
        raise UserError("the checkpoint does not match the configuration: " + "; ".join(told[:_LISTED]) + more)
    return params


def with_copies(cfg: ModelConfig, tensors: Mapping[str, np.ndarray], output: str) -> dict[str, np.ndarray]:
    """Add the copies of the decoder's table that fairseq also stores."""
    return {**tensors, **dict.fromkeys(_copies(cfg, output), tensors[_TABLE])}


def _copies(cfg: ModelConfig, output: str) -> list[str]:
    """Other names under which fairseq stores the decoder's table."""
    tied = [output] if cfg.decoder.tied_output else []
    return [*tied, "encoder.embed_tokens.weight"] if cfg.share_embeddings else tied


def _different(tensors: Mapping[str, Any], copies: Collection[str]) -> list[str]:
    """The tensors that should equal the decoder's table and do not."""
    if _TABLE not in tensors:
        return []
    odd = [name for name in copies if name in tensors and not np.array_equal(tensors[name], tensors[_TABLE])]
    return [f"{name} differs from {_TABLE}, but the model shares them" for name in odd]


FEWEST = len(SPECIAL)
"""Minimum number of rows of an embedding table: one for each special symbol."""


def _rows(tensors: Mapping[str, Any], side: str) -> int:
    """Number of rows of a table, at least `FEWEST`. A smaller table is later reported as missing or misshapen."""
    shape: tuple[int, ...] = np.shape(tensors.get(f"{side}.embed_tokens.weight", ()))
    return max(FEWEST, shape[0] if len(shape) == 2 else 0)
