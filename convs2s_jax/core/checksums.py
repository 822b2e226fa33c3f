"""Checksums of what is written, so that damage is noticed when it is read back."""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

FIELD = "checksum"
"""Name of the field that `seal` adds to a record."""


class DamagedError(ValueError):
    """What was read is not what was written. The message says how that shows, not where."""


def checksum(*parts: Any) -> str:
    """The XXH3 hash (64 bits) of bytes-like parts, one after another, as 16 hexadecimal digits.

    A single changed bit always shows; any other change is missed with a probability of about 2^-64. The hash runs at
    the speed of memory. It is no protection against changes made on purpose.
    """
    state = stream()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def stream() -> xxhash.xxh3_64:
    """An object that computes `checksum` of parts that come one by one: `update(part)`, then `hexdigest()`."""
    return xxhash.xxh3_64()


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of JSON values with a checksum of the others as its last field."""
    return {**record, FIELD: _of_record(record)}


def unseal(record: Any) -> dict[str, Any]:
    """The record without its checksum.

    Raises:
      DamagedError: it is not a record, has no checksum, or has that of another content.
    """
    if not isinstance(record, dict) or not isinstance(record.get(FIELD), str):
        raise DamagedError("it has no checksum")
    content = {name: value for name, value in record.items() if name != FIELD}
    if record[FIELD] != _of_record(content):
        raise DamagedError("its checksum is that of another content")
    return content


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises DamagedError where it is no JSON, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError("it is no JSON") from error


def _of_record(record: Mapping[str, Any]) -> str:
    return checksum(json.dumps(record, sort_keys=True).encode())
