"""Objects in Google Cloud Storage (gs://BUCKET/NAME) and S3 (s3://BUCKET/NAME), through TensorStore's drivers.

TensorStore is a dependency of Orbax, which uses it for arrays. Objects are written as a whole, so readers see the old
content or the new one. Both stores are consistent: later reads and listings see what was written.
"""

import errno
import functools
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.places import scheme_of

T = TypeVar("T")

PARALLEL = 4
"""Number of objects read or written at the same time. TensorStore writes objects as a whole."""
RANGE = 1 << 22
"""Number of bytes of a long object that are read at once."""
RETRIES = {"max_retries": 6, "initial_delay": "500ms", "max_delay": "8s"}
"""Retries of failed requests to a store: half a minute in total."""
GOOGLE = "TENSORSTORE_GCS_HTTP_URL"
"""Environment variable from which TensorStore reads the address of Google Cloud Storage."""
CREDENTIALS = "docs/object-stores.md explains buckets and credentials"


def read(address: str) -> bytes:
    """Return the content of an object. Raises FileNotFoundError if it is missing, OSError if it cannot be read."""
    found = _read(address, slice(None))
    if found.state != "value":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return bytes(found.value)


class Reader(io.RawIOBase):
    """An object as a file, read from its beginning in ranges of `RANGE` bytes. Errors are as in `read`."""

    def __init__(self, address: str) -> None:
        self._address, self._end, self._last, self._version = address, 0, False, b""
        self._rest = memoryview(b"")

    def readable(self) -> bool:  # noqa: D102
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        if not self._rest and not self._last:
            begin = max(self._end - 1, 0)  # a byte that exists: stores refuse to read from the end of an object
            try:
                found = _read(self._address, slice(begin, begin + RANGE))
            except OSError:  # the object ends before
                found, self._last = _read(self._address, slice(begin, None)), True
            if found.state != "value":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._address)
            if self._version not in (b"", found.stamp.generation):
                raise OSError(errno.EIO, "it was replaced while it was read", self._address)
            self._rest, self._version = memoryview(found.value)[self._end - begin :], found.stamp.generation
            self._end = begin + len(found.value)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def write(address: str, content: bytes) -> None:
    """Write an object, replacing an earlier one. Raises OSError if it cannot be written."""
    _written(address, content)


def delete(address: str) -> None:
    """Delete an object if it exists. Raises OSError if it cannot be deleted."""
    _written(address, None)


def read_version(address: str) -> tuple[bytes | None, bytes]:
    """Return the content of an object, None if it is missing, and its version for `write_if`. Raises OSError."""
    found = _read(address, slice(None))
    return (bytes(found.value) if found.state == "value" else None), found.stamp.generation


def write_if(address: str, content: bytes | None, version: bytes) -> bytes:
    """Write an object, or delete it (None), if it still has a version that was read or written, or is still missing.

    Returns:
      Its new version; b"" if it had another one.

    Raises:
      OSError: it cannot be written.
    """
    return _written(address, content, if_equal=version).generation


def names(folder: str, beginning: str = "") -> list[str]:
    """Return the names of all objects in a folder and its subfolders, relative to the folder, as in "vocab/src.txt".

    Empty objects whose names end in a slash, with which consoles mark folders, are left out.

    Args:
      folder: its address.
      beginning: return only names with this prefix.

    Raises:
      OSError: they cannot be listed. With gs://, a refusal may instead give an empty list (see `_listed`), so
        check an object that must exist (`not_listed`) before overwriting.
    """
    bucket, name = _split(folder)
    inside = f"{name.rstrip('/')}/" if name else ""
    found = _tried(folder, lambda: _listed(bucket, inside + beginning))
    return sorted(key[len(inside) :] for key in found if len(key) > len(inside) and not key.endswith("/"))


def not_listed(address: str) -> OSError:
    """Return the error for a folder whose list lacks an object that is there."""
    why = "its objects are not listed, for which the credentials need storage.objects.list (or s3:ListBucket)"
    return OSError(errno.EIO, why, address)


def in_parallel(work: Callable[[str], T], items: Iterable[str]) -> list[T]:
    """Return the results for all items in order, working on a few at a time. Raises the first error."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(work, items))


def unusable(name: str, address: str, error: OSError) -> UserError:
    """Return the error for an address that cannot be read or written."""
    return UserError(f"{name}={address} cannot be used: {error.strerror}; {CREDENTIALS}")


def _split(address: str) -> tuple[tuple[str, str], str]:
    """Return (scheme, bucket) and the name of an object."""
    bucket, _, name = address.partition("://")[2].partition("/")
    return (scheme_of(address), bucket), name


def _opened(bucket: tuple[str, str]) -> Any:
    """Return TensorStore's driver for a bucket, without opening a connection."""
    scheme, name = bucket
    return _driver(json.dumps(SPECS[scheme](name, os.environ)), os.environ.get(GOOGLE))


@functools.cache
def _driver(spec: str, emulator: str | None) -> Any:
    """Return one driver per specification, because it keeps connections and credentials."""
    del emulator  # TensorStore reads it from the environment
    import tensorstore  # not needed without a store, and slow to import

    return tensorstore.KvStore.open(json.loads(spec)).result()


def _written(address: str, content: bytes | None, **condition: bytes) -> Any:
    """Write or delete an object and return TensorStore's stamp of it. Raises OSError."""
    bucket, name = _split(address)
    return _tried(address, lambda: _opened(bucket).write(name, content, **condition).result())


def _read(address: str, part: slice) -> Any:
    """Return TensorStore's result of reading a part of an object, which may be missing. Raises OSError."""
    bucket, name = _split(address)
    return _tried(address, lambda: _opened(bucket).read(name, byte_range=part).result())


def _listed(bucket: tuple[str, str], prefix: str) -> list[str]:
    """Return all keys that begin with a prefix.

    TensorStore 0.1.86 takes it for an empty list if Google's store refuses a list (HTTP 401, 403, 404). Refused reads
    are reported, so an empty list is followed by a read, and by a second list in case the refusal was temporary. What
    remains unseen is a role that may read and write objects, but not list them.
    """
    import tensorstore

    end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""  # the smallest string above all of them
    driver, keys = _opened(bucket), tensorstore.KvStore.KeyRange(prefix, end)
    found = driver.list(keys).result()
    if not found and bucket[0] == "gs":
        driver.read(f"{prefix.rpartition('/')[0]}/.list".lstrip("/"), byte_range=slice(0, 1)).result()
        found = driver.list(keys).result()
    return [key for key in map(bytes.decode, found) if key.startswith(prefix)]  # emulators list more than requested


def _google(bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver spec of a Google Cloud Storage bucket. STORAGE_EMULATOR_HOST selects an emulator, as usual."""
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if emulator and GOOGLE not in environment:
        os.environ[GOOGLE] = emulator if scheme_of(emulator) else f"http://{emulator}"
    return {"driver": "gcs", "bucket": bucket, "gcs_request_retries": RETRIES}


def _amazon(bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver spec of a bucket in S3, or in a compatible store, at the endpoint that AWS libraries use."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "s3_request_retries": RETRIES}
    if endpoint:
        spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region:
        spec |= {"aws_region": region}
    if environment.get("AWS_ACCESS_KEY_ID"):  # otherwise files, web identities and metadata servers are tried
        spec |= {"aws_credentials": {"type": "environment"}}
    return spec


SPECS: Mapping[str, Callable[[str, Mapping[str, str]], dict[str, Any]]] = {"gs": _google, "s3": _amazon}
"""Specifications of TensorStore's drivers, by scheme."""


def _tried(address: str, action: Callable[[], T]) -> T:
    """Return the result of an action. Any error of TensorStore becomes a one-line OSError with the address."""
    try:
        return action()
    except (OSError, UserError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, first_line(error).partition(" [")[0], address) from error
