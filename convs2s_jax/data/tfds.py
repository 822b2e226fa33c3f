"""TensorFlow Datasets as parallel text, read without TensorFlow.

Data sets must be stored in the array_record format. A data set that is not on disk is prepared in that format.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets
import tensorflow_datasets.summarization
import tensorflow_datasets.translate  # these two imports register their data sets

from convs2s_jax.core.errors import UserError, did_you_mean, first_line
from convs2s_jax.core.network import unreachable
from convs2s_jax.data import tables
from convs2s_jax.data.hugging_face import SPLITS

_PIECE = 1000  # number of examples read at once: one by one takes twice the time


def pairs(
    name: str, split: str, names: Sequence[str], *, folder: str = "", skip: bool = False
) -> Iterator[tables.Pair] | None:
    """Return two text features of the examples of a data set, in their order, or None if it has no such split.

    Args:
      name: "NAME", "NAME/CONFIG" or "NAME/CONFIG:VERSION".
      split: "train", "valid" (or the data set's "validation") or "test".
      names: of the features, and `skip`, as in `tables.pairs`.
      folder: data folder; empty: the library's default.

    Raises:
      UserError: unknown data set or feature, features that are not text, or a damaged file.
    """
    with _opened(name, split, folder) as (builder, there):
        features = builder.info.features
        for feature in names:
            if feature.partition(".")[0] not in features:
                raise UserError(
                    f"data.corpus 'tfds:{name}' has no feature '{feature}'{did_you_mean(feature, features)}"
                )
    if there is None:
        return None
    return tables.checked(_examples(name, split, folder), names, f"data.corpus 'tfds:{name}'", skip=skip)


def _examples(name: str, split: str, folder: str) -> Iterator[dict[str, Any]]:
    with _opened(name, split, folder) as (builder, there):
        examples = builder.as_data_source(split=there)
        for first in range(0, len(examples), _PIECE):
            yield from examples.__getitems__(range(first, min(first + _PIECE, len(examples))))


def files(name: str, split: str, *, folder: str = "") -> tuple[str, ...]:
    """Return the files of a split, or () if it does not exist. Arguments and errors are as in `pairs`."""
    with _opened(name, split, folder) as (builder, there):
        return tuple(map(str, builder.info.splits[there].filepaths)) if there else ()


@contextlib.contextmanager
def _opened(name: str, split: str, folder: str) -> Iterator[tuple[Any, str | None]]:
    """Yield the builder of a data set on disk and its name for a split, None if it does not have the split.

    Any error of the library within the block becomes a UserError. Its record files contain checksums.
    """
    try:
        builder = _prepared(name, folder)
        yield builder, next((one for one in SPLITS[split] if one in builder.info.splits), None)
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"data.corpus 'tfds:{name}' cannot be read ({first_line(error)}): one of its files is missing, damaged, or "
            "not in the format array_record; copy it again, or delete its folder in data.tfds_dir and prepare it again"
        ) from error


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
    try:
        began = Path(builder.data_dir_root, "downloads", builder.name).glob("*.INFO")
        if why := not any(began) and unreachable(builder.url_infos or ()):
            raise ConnectionError(f"its files cannot be downloaded: {why}")
        builder = tensorflow_datasets.builder(name, data_dir=builder.data_dir_root, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # downloads and third-party parsers can raise anything
        raise UserError(
            f"data.corpus 'tfds:{name}' could not be prepared ({first_line(error)}): "
            "prepare it elsewhere as array_record and set data.tfds_dir to its folder"
        ) from error
    return builder
