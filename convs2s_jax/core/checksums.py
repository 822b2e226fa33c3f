"""Checksums that detect damage to written data when it is read back."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

WRAP = 1 << 64
"""Modulus of sums of hashes."""
FIELD = "checksum"
"""Name of the field that `seal` adds to a record."""


class DamagedError(ValueError):
    """The data read is not the data written. The message states the symptom, not the place."""


def checksum(*parts: Any) -> str:
    """Return the 64-bit XXH3 hash of concatenated bytes-like parts as 16 hexadecimal digits.

    A single changed bit is always detected; any other change is missed with a probability of about 2^-64. The hash runs
    at memory speed. It does not protect against deliberate changes.
    """
    state = stream()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def stream() -> xxhash.xxh3_64:
    """Return an object that computes `checksum` incrementally: call `update(part)`, then `hexdigest()`."""
    return xxhash.xxh3_64()


def lines_digest(lines: Iterable[str], first: int) -> int:
    """Return the sum of the hashes of lines with their numbers, from `first`, modulo 2^64: those of parts add up."""
    encoded = (line.encode("utf-8", "surrogatepass") for line in lines)
    return sum(xxhash.xxh3_64_intdigest(line, seed=n) for n, line in enumerate(encoded, first)) % WRAP


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of JSON values with the checksum of its fields added as the last field."""
    return {**record, FIELD: _of_record(record)}


def unseal(record: Any) -> dict[str, Any]:
    """Return the record without its checksum.

    Raises:
      DamagedError: it is not a record, has no checksum, or its checksum does not match.
    """
    if not isinstance(record, dict) or not isinstance(record.get(FIELD), str):
        raise DamagedError("it has no checksum")
    content = {name: value for name, value in record.items() if name != FIELD}
    if record[FIELD] != _of_record(content):
        raise DamagedError("its checksum does not match its content")
    return content


def parsed(text: str | bytes) -> Any:
    """Parse a JSON text. Raises DamagedError if it is none, too deeply nested, or has an integer of 21 characters."""
    try:
        return json.loads(text, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise DamagedError("it is not JSON") from error


def integer(text: str) -> int:
    """Return the integer of a JSON text. Raises ValueError beyond 20 characters, as no value of ours has."""
    if len(text) > 20:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _of_record(record: Mapping[str, Any]) -> str:
    return checksum(json.dumps(record, sort_keys=True).encode())
