"""Tensors by fairseq's names, put where our parameters have them; what does not fit is named."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig, Params

_LISTED = 30


class Place(NamedTuple):
    """Where fairseq keeps a parameter: its name, its shape there, and how it becomes ours."""

    name: str
    shape: tuple[int, ...]
    convert: Callable[[np.ndarray], np.ndarray]


def fitted(
    cfg: ModelConfig,
    tensors: Mapping[str, Any],
    place: Callable[[str, tuple[int, ...]], Place],
    *,
    output: str,
    spare: Collection[str],
) -> Params:
    """Parameters of a model, as they are trained, with the numbers of `tensors`.

    Args:
      cfg: the model; its vocabularies are as large as the tables.
      tensors: arrays by fairseq's names.
      place: of a parameter's path ('decoder/blocks/0/...') and shape.
      output: name of the softmax layer's kernel, which may stand beside the table where they are tied.
      spare: names that may be there and are not read.

    Raises:
      UserError: names the missing, misshapen and surplus tensors, and a tied kernel that is another table.
    """
    used, told = set(spare), []
    if cfg.decoder.tied_output:
        used.add(output)
    sizes = {"source_vocabulary": _rows(tensors, "encoder"), "target_vocabulary": _rows(tensors, "decoder")}
    abstract = jax.eval_shape(
        lambda key: encoder_decoder.split(encoder_decoder.init(key, cfg, **sizes), cfg), jax.random.key(0)
    )

    def read(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        at = place(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape)
        used.add(at.name)
        if at.name not in tensors:
            told.append(f"{at.name} is missing")
            return leaf
        value = np.asarray(tensors[at.name])
        if value.shape != at.shape:
            told.append(f"{at.name} is {value.shape}, the model has {at.shape}")
            return leaf
        return jnp.asarray(at.convert(value))

    params: Params = jax.tree_util.tree_map_with_path(read, abstract)
    told += [f"{name} has no place in the model" for name in sorted(set(tensors) - used)]
    if cfg.decoder.tied_output:
        told += _untied(tensors, output)
    if told:
        more = f"; and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
        raise UserError("the checkpoint does not fit its configuration: " + "; ".join(told[:_LISTED]) + more)
    return params


def _untied(tensors: Mapping[str, Any], output: str) -> list[str]:
    """A problem where the kernel of a tied output is there and is not the table that it should be."""
    table = "decoder.embed_tokens.weight"
    if output in tensors and table in tensors and not np.array_equal(tensors[output], tensors[table]):
        return [f"{output} is not {table}, though the model shares them"]
    return []


def _rows(tensors: Mapping[str, Any], side: str) -> int:
    """Rows of a table; 1 where there is none, which is then found missing or misshapen."""
    shape: tuple[int, ...] = np.shape(tensors.get(f"{side}.embed_tokens.weight", ()))
    return shape[0] if len(shape) == 2 else 1
