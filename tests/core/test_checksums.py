"""Checksums of files and records."""

import json

import numpy as np
import pytest
import xxhash

from convs2s_jax.core.checksums import DamagedError, checksum, seal, unseal


def test_a_checksum_is_that_of_all_parts_together():
    data = np.arange(1000, dtype=np.int32)
    assert checksum(b"ab", data, b"") == checksum(b"ab" + data.tobytes())
    assert checksum(data) == xxhash.xxh3_64_hexdigest(data.tobytes())
    assert checksum() == "2d06800538d394c2"  # of no bytes at all, as the specification of XXH3 gives it


def test_each_flipped_bit_of_a_sealed_record_shows_or_changes_nothing():
    """The escape of a letter may be written in capitals and mean the same."""
    record = {"loss": 1.25, "name": "ä", "steps": [1, 2]}
    text = json.dumps(seal(record)).encode()
    assert unseal(json.loads(text)) == record
    same = 0
    for bit in range(8 * len(text)):
        data = bytearray(text)
        data[bit // 8] ^= 1 << bit % 8
        try:
            same += unseal(json.loads(bytes(data).decode())) == record
        except ValueError:
            continue
        assert unseal(json.loads(bytes(data).decode())) == record
    assert same <= 4


def test_a_record_without_a_checksum_is_not_accepted():
    for damaged in ({"loss": 1.25}, [1], "text", {"loss": 1.25, "checksum": 3}):
        with pytest.raises(DamagedError):
            unseal(damaged)
