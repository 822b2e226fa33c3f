"""TensorFlow Datasets as parallel text, read without TensorFlow.

Data sets must be stored in the array_record format. A data set that is not on disk is prepared in that format.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets
import tensorflow_datasets.summarization
import tensorflow_datasets.translate  # these two imports register their data sets

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.network import unreachable
from convs2s_jax.data import tables
from convs2s_jax.data.hugging_face import SPLITS

_DAMAGED = (
    "one of its files is missing, damaged, or not in the format array_record; copy it again, or delete its folder in "
    "data.tfds_dir and prepare it again"
)
_ELSEWHERE = "prepare it elsewhere as array_record and set data.tfds_dir to its folder"


def read(
    name: str, split: str, names: Sequence[str], *, folder: str = "", skip: bool = False
) -> tuple[Iterator[tables.Pair], tuple[str, ...]] | None:
    """Return two text features of the examples of a data set, in their order, and its files; None without this split.

    Args:
      name: "NAME", "NAME/CONFIG" or "NAME/CONFIG:VERSION".
      split: "train", "valid" (or the data set's "validation") or "test".
      names: of the features, and `skip`, as in `tables.pairs`.
      folder: data folder; empty: the library's default.

    Raises:
      UserError: unknown data set or feature, features that are not text, or a damaged file.
    """
    with tables.readable(f"data.corpus 'tfds:{name}'", _DAMAGED):  # its record files contain checksums
        builder = _prepared(name, folder)
        there = next((one for one in SPLITS[split] if one in builder.info.splits), None)
        if there is None:
            return None
        files = tuple(map(str, builder.info.splits[there].filepaths))
    return tables.checked(_examples(builder, there), names, f"data.corpus 'tfds:{name}'", _DAMAGED, skip=skip), files


def _examples(builder: Any, split: str) -> Iterator[dict[str, Any]]:
    examples = builder.as_data_source(split=split)
    for first in range(0, len(examples), tables.BLOCK):  # one by one takes twice the time
        yield from examples.__getitems__(range(first, min(first + tables.BLOCK, len(examples))))


def _prepared(name: str, folder: str) -> Any:
    """Return the data set's builder, with its files on disk."""
    try:
        builder = tensorflow_datasets.builder(name, data_dir=os.path.expanduser(folder) or None)
    except (tensorflow_datasets.core.registered.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            f"data.corpus is 'tfds:{name}': this data set is neither known to TensorFlow Datasets nor prepared in "
            f"data.tfds_dir '{folder}'; see the catalogue at tensorflow.org/datasets/catalog"
        ) from error
    if builder.is_prepared():
        return builder
    with tables.readable(f"data.corpus 'tfds:{name}'", _ELSEWHERE):
        began = Path(builder.data_dir_root, "downloads", builder.name).glob("*.INFO")
        if why := not any(began) and unreachable(builder.url_infos or ()):
            raise ConnectionError(f"its files cannot be downloaded: {why}")
        builder = tensorflow_datasets.builder(name, data_dir=builder.data_dir_root, file_format="array_record")
        builder.download_and_prepare()
    return builder
