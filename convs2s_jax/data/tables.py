"""Tables with both sides of a corpus: TSV, JSON lines and Parquet, in files and in object stores."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from convs2s_jax.core import local_copies
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, did_you_mean, first_line, shown
from convs2s_jax.core.files import open_regular
from convs2s_jax.data.text_files import each_line, parsed, suffix_of, utf_8

Pair = tuple[str | None, str | None]
"""A source and a target line; None for a damaged one."""
SUFFIXES = ("tsv", "jsonl", "ndjson", "parquet")
BLOCK = 1000
"""Number of rows that are read at once."""


def pairs(path: str, names: Sequence[str], *, skip: bool = False) -> Iterator[Pair]:
    """Yield the pairs of a table, whose kind is that of its suffix. Line ends inside a text become spaces.

    Args:
      path: its path or address.
      names: columns of source and target; of the target alone if sources are empty. A name with dots is that of a
        column inside another. Numbers from 1 are columns of a TSV file without a header.
      skip: whether the sides of a damaged row are None in place of an error.

    Raises:
      UserError: the file is damaged, has no such column, or one of its rows has no text there.
    """
    suffix = suffix_of(path)
    check(suffix in SUFFIXES, f"{path} is no table ({', '.join(SUFFIXES)}): list text files as pairs of two")
    if suffix == "parquet":
        remedy = "copy it again, or choose a Parquet file"
        return checked(_parquet_rows(path, names), names, path, remedy, skip=skip)
    return _tsv(path, names, skip) if suffix == "tsv" else parsed_pairs(path, _json_line(names), skip=skip)


def has_header(path: str, names: Sequence[str]) -> bool:
    """Whether the first line of a table is the names of its columns."""
    return suffix_of(path) == "tsv" and not all(map(str.isdecimal, names))


def parsed_pairs(path: str, parse: Callable[[str], Pair], *, skip: bool = False) -> Iterator[Pair]:
    """Yield the pair that `parse` makes of each line of a text file. The rest is as in `text_files.parsed`."""
    return (pair or (None, None) for pair in parsed(path, parse, skip=skip))


@contextlib.contextmanager
def readable(where: str, remedy: str) -> Iterator[None]:
    """Turn errors of a library within the block, which can be of any kind, into a UserError with the place."""
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        raise UserError(f"{where} cannot be read ({reason}): {remedy}") from error


def checked(rows: Iterable[Any], names: Sequence[str], where: str, remedy: str, *, skip: bool) -> Iterator[Pair]:
    """Yield the pairs of rows, which are dictionaries; `where` and `remedy` are for messages. Else as in `pairs`."""
    with readable(where, remedy):
        for number, row in enumerate(rows, 1):
            try:
                pair: Pair = _pair(row, names)
            except UserError as error:
                if not skip:
                    raise UserError(f"{where}, row {number}: {error}") from error
                pair = None, None
            yield pair


def _pair(row: Any, names: Sequence[str]) -> Pair:
    """Return the texts of a row. Raises UserError if it is no dictionary or has none."""
    texts = ["", *(_text(row, name) for name in names)][-2:]
    return texts[0], texts[1]


def _text(row: Any, name: str) -> str:
    value = row
    for part in [name] if isinstance(row, dict) and name in row else name.split("."):
        known = value if isinstance(value, dict) else {}
        if part not in known:
            raise UserError(f"there is no '{name}'{did_you_mean(part, known)}")
        value = known[part]
    text = utf_8(value) if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise UserError(f"'{name}' is {shown(text)}, not text")
    whole = text.isascii() or text.encode(errors="ignore").decode() == text
    if "\0" in text or not whole:
        raise UserError(f"'{name}' contains NUL or half a character, which no text does: delete it")
    return text.replace("\r\n", " ").replace("\n", " ")


def _tsv(path: str, names: Sequence[str], skip: bool) -> Iterator[Pair]:
    header = next(each_line(path, again=True), "").split("\t") if has_header(path, names) else []
    for name in names:
        there = name in header if header else int(name) > 0
        check(there, f"{path} has no column '{name}'{did_you_mean(name, header, otherwise='')}")
    columns = {name: header.index(name) if header else int(name) - 1 for name in names}
    least = max(columns.values()) + 1

    def parse(line: str) -> Pair:
        cells = line.split("\t")
        if len(cells) < least:
            raise UserError(f"it has {counted(len(cells), 'column')}; expected {least} or more")
        return _pair({name: cells[i] for name, i in columns.items()}, names)

    return itertools.islice(parsed_pairs(path, parse, skip=skip), bool(header), None)


def _json_line(names: Sequence[str]) -> Callable[[str], Pair]:
    def parse(line: str) -> Pair:
        try:
            row = json.loads(line)
        except (RecursionError, ValueError) as error:
            raise UserError(f"it is not JSON ({first_line(error)})") from error
        return _pair(row, names)

    return parse


def _parquet_rows(path: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow  # slow to import
    from pyarrow import compute, parquet

    with local_copies.incoming("data.files", path) as copy, open_regular(copy) as file:  # its end is read first
        table = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)

        def texts(rows: Any, name: str) -> list[Any]:
            try:
                return compute.struct_field(rows, name.split(".")).cast(pyarrow.large_binary()).to_pylist()
            except pyarrow.ArrowException as error:
                known = [table.schema.column(i).path for i in range(len(table.schema))]
                raise UserError(f"{path} has no column '{name}' of text{did_you_mean(name, known)}") from error

        for batch in table.iter_batches(batch_size=BLOCK, columns=[*names]):
            sides = [texts(batch.to_struct_array(), name) for name in names]
            yield from (dict(zip(names, row, strict=True)) for row in zip(*sides, strict=True))
