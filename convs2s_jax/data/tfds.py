"""TensorFlow Datasets as parallel text, read without TensorFlow.

Data sets must be stored in the array_record format. A data set that is not on disk yet is prepared in that format.
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
_PIECE = 1000  # examples that are read at once


def read(name: str, split: str, *, src: str, tgt: str, folder: str = "") -> tuple[Sequence[str], Sequence[str]] | None:
    """Read two text features of a data set, in the order of its examples.

    Args:
      name: "NAME", "NAME/CONFIG" or "NAME/CONFIG:VERSION".
      split: "train", "valid" ("validation" is read too) or "test".
      src, tgt: names of the features.
      folder: where data sets are kept; empty: the library's default.

    Returns:
      The two sides, each text as one line (line ends inside it become spaces); None if there is no such split.

    Raises:
      UserError: no such data set, split without examples, no such feature, features that are not text, or a damaged
        file.
    """
    with _intact(name):
        return _read(name, split, src, tgt, folder)


def files(name: str, split: str, *, folder: str = "") -> tuple[str, ...]:
    """The files of a split, empty if there is none. Arguments and errors as of `read`."""
    with _intact(name):
        builder = _prepared(name, folder)
        name_there = _split_of(builder, split)
        return tuple(map(str, builder.info.splits[name_there].filepaths)) if name_there else ()


@contextlib.contextmanager
def _intact(name: str) -> Iterator[None]:
    """Turn whatever the library raises for damaged files into a UserError. Its record files carry checksums."""
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"data.corpus 'tfds:{name}' cannot be read ({first_line(error)}): a file of it is missing or damaged; "
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
            "prepare it again in that format or give another data.tfds_dir"
        ) from error
    src_lines, tgt_lines = [], []
    for i, example in enumerate(_in_order(examples)):
        src_lines.append(_line(example[src], name, src, i))
        tgt_lines.append(_line(example[tgt], name, tgt, i))
    return src_lines, tgt_lines


def _split_of(builder: Any, split: str) -> str | None:
    """What the data set calls a split; None if it has none."""
    return next((candidate for candidate in _SPLITS[split] if candidate in builder.info.splits), None)


def _in_order(examples: Any) -> Iterator[Any]:
    """All examples, read in pieces: one by one they take twice the time."""
    for first in range(0, len(examples), _PIECE):
        yield from examples.__getitems__(range(first, min(first + _PIECE, len(examples))))


def _prepared(name: str, folder: str) -> Any:
    """The data set's builder, with its files on disk."""
    try:
        builder = tensorflow_datasets.builder(name, data_dir=os.path.expanduser(folder) or None)
    except (tensorflow_datasets.core.registered.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            f"data.corpus is 'tfds:{name}': there is no such data set, neither known to TensorFlow Datasets "
            f"nor prepared in data.tfds_dir '{folder}'; its catalogue is at tensorflow.org/datasets/catalog"
        ) from error
    if builder.is_prepared():
        return builder
    try:
        builder = tensorflow_datasets.builder(name, data_dir=builder.data_dir_root, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # downloads and third-party parsers can raise anything
        raise UserError(
            f"data.corpus 'tfds:{name}' could not be prepared ({first_line(error)}): "
            "prepare it elsewhere as array_record and give its folder as data.tfds_dir"
        ) from error
    return builder


def _check_features(name: str, builder: Any, wanted: tuple[str, ...]) -> None:
    features = builder.info.features
    for feature in wanted:
        if feature not in features:
            raise UserError(f"data.corpus 'tfds:{name}' has no feature '{feature}'{did_you_mean(feature, features)}")


def _line(value: Any, name: str, feature: str, i: int) -> str:
    if not isinstance(value, bytes):
        raise UserError(f"data.corpus 'tfds:{name}': feature '{feature}' is not a text; name one that is")
    try:
        return value.decode("utf-8").replace("\r\n", " ").replace("\n", " ")
    except UnicodeDecodeError as error:
        byte = f"0x{value[error.start]:02x}"
        raise UserError(
            f"data.corpus 'tfds:{name}', example {i}, feature '{feature}': byte {byte} is not UTF-8"
        ) from error
