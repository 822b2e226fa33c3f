"""TensorFlow Datasets as parallel text, read without TensorFlow.

Data sets must be stored in the array_record format. A data set that is not on disk is prepared in that format.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets
import tensorflow_datasets.summarization
import tensorflow_datasets.translate  # these two imports register their data sets

from convs2s_jax.core.errors import UserError, did_you_mean, first_line

_SPLITS = {"train": ("train",), "valid": ("validation", "valid"), "test": ("test",)}
_PIECE = 1000  # number of examples read at once


def read(name: str, split: str, *, src: str, tgt: str, folder: str = "") -> tuple[Sequence[str], Sequence[str]] | None:
    """Read two text features of a data set, in the order of its examples.

    Args:
      name: "NAME", "NAME/CONFIG" or "NAME/CONFIG:VERSION".
      split: "train", "valid" (or the data set's "validation") or "test".
      src, tgt: names of the features.
      folder: data folder; empty: the library's default.

    Returns:
      The two sides, one line per text (line ends inside a text become spaces), or None if the split does not exist.

    Raises:
      UserError: unknown data set or feature, features that are not text, or a damaged file.
    """
    with _intact(name):
        return _read(name, split, src, tgt, folder)


def files(name: str, split: str, *, folder: str = "") -> tuple[str, ...]:
    """Return the files of a split, or () if it does not exist. Arguments and errors as in `read`."""
    with _intact(name):
        builder = _prepared(name, folder)
        name_there = _split_of(builder, split)
        return tuple(map(str, builder.info.splits[name_there].filepaths)) if name_there else ()


@contextlib.contextmanager
def _intact(name: str) -> Iterator[None]:
    """Convert any error of the library for damaged files to UserError. Its record files contain checksums."""
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"data.corpus 'tfds:{name}' cannot be read ({first_line(error)}): one of its files is missing or damaged; "
            "copy the data set again, or delete its folder in data.tfds_dir and prepare it again"
        ) from error


def _read(name: str, split: str, src: str, tgt: str, folder: str) -> tuple[Sequence[str], Sequence[str]] | None:
    builder = _prepared(name, folder)
    _check_features(name, builder, (src, tgt))
    name_there = _split_of(builder, split)
    if name_there is None:
        return None
    try:
        examples = builder.as_data_source(split=name_there)
    except NotImplementedError as error:
        raise UserError(
            f"data.corpus 'tfds:{name}' is stored as {builder.info.file_format.value}: only array_record can be read; "
            "prepare it again in that format, or choose another data.tfds_dir"
        ) from error
    src_lines, tgt_lines = [], []
    for i, example in enumerate(_in_order(examples)):
        src_lines.append(_line(example[src], name, src, i))
        tgt_lines.append(_line(example[tgt], name, tgt, i))
    return src_lines, tgt_lines


def _split_of(builder: Any, split: str) -> str | None:
    """Return the data set's name for a split, or None if it does not have the split."""
    return next((candidate for candidate in _SPLITS[split] if candidate in builder.info.splits), None)


def _in_order(examples: Any) -> Iterator[Any]:
    """Yield all examples, read in blocks, because one by one takes twice the time."""
    for first in range(0, len(examples), _PIECE):
        yield from examples.__getitems__(range(first, min(first + _PIECE, len(examples))))


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
        builder = tensorflow_datasets.builder(name, data_dir=builder.data_dir_root, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # downloads and third-party parsers can raise anything
        raise UserError(
            f"data.corpus 'tfds:{name}' could not be prepared ({first_line(error)}): "
            "prepare it elsewhere as array_record and set data.tfds_dir to its folder"
        ) from error
    return builder


def _check_features(name: str, builder: Any, wanted: tuple[str, ...]) -> None:
    features = builder.info.features
    for feature in wanted:
        if feature not in features:
            raise UserError(f"data.corpus 'tfds:{name}' has no feature '{feature}'{did_you_mean(feature, features)}")


def _line(value: Any, name: str, feature: str, i: int) -> str:
    if not isinstance(value, bytes):
        raise UserError(f"data.corpus 'tfds:{name}': feature '{feature}' is not text; choose a text feature")
    try:
        return value.decode("utf-8").replace("\r\n", " ").replace("\n", " ")
    except UnicodeDecodeError as error:
        byte = f"0x{value[error.start]:02x}"
        raise UserError(
            f"data.corpus 'tfds:{name}', example {i}, feature '{feature}': byte {byte} is not UTF-8"
        ) from error
