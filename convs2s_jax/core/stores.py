"""Objects in Google Cloud Storage (gs://BUCKET/NAME) and in S3 (s3://BUCKET/NAME), through TensorStore's drivers.

TensorStore comes with Orbax, which reads and writes arrays with it. An object is written as a whole: readers see the
old content or the new one. Both kinds of stores show what was written to every later read and listing.
"""

import contextlib
import errno
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.places import scheme_of

T = TypeVar("T")

PARALLEL = 4
"""Objects that are read or written at a time. Each is in memory as a whole."""
RETRIES = {"max_retries": 6, "initial_delay": "500ms", "max_delay": "8s"}
"""For requests that a store, or the network before it, could not serve: half a minute in all."""
GOOGLE = "TENSORSTORE_GCS_HTTP_URL"
"""Variable of the environment in which TensorStore looks for the address of Google Cloud Storage."""
CREDENTIALS = "docs/object-stores.md says how buckets and credentials are given"


def join(folder: str, *names: str) -> str:
    """The address of what a folder holds."""
    return "/".join([folder.rstrip("/"), *names])


def read(address: str) -> bytes:
    """The content of an object. Raises FileNotFoundError where there is none, and OSError where it cannot be read."""
    bucket, name = _split(address)
    found = _tried(address, lambda: _opened(bucket).read(name).result())
    if found.state != "value":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return bytes(found.value)


def write(address: str, content: bytes) -> None:
    """Write an object, in place of an earlier one. Raises OSError where it cannot be written."""
    bucket, name = _split(address)
    _tried(address, lambda: _opened(bucket).write(name, content).result())


def delete(address: str) -> None:
    """Delete an object if it is there. Raises OSError where it cannot be deleted."""
    bucket, name = _split(address)
    _tried(address, lambda: _opened(bucket).write(name, None).result())


def names(folder: str, beginning: str = "") -> list[str]:
    """The names of all objects in a folder and in those inside it, relative to the folder: "vocab/src.txt".

    Args:
      folder: its address.
      beginning: only names that begin so.

    Raises:
      OSError: they cannot be listed.
    """
    bucket, name = _split(folder)
    inside = f"{name.rstrip('/')}/" if name else ""
    found = _tried(folder, lambda: _listed(bucket, inside + beginning))
    return sorted(key[len(inside) :] for key in found if len(key) > len(inside))


def exists(address: str) -> bool:
    """Whether there is such an object. Raises OSError where that cannot be known."""
    folder, _, name = address.rpartition("/")
    return name in names(folder, name)


def delete_all(folder: str, of: Iterable[str]) -> None:
    """Delete objects of a folder. Raises OSError where one cannot be deleted."""
    in_parallel(lambda name: delete(join(folder, name)), of)


def in_parallel(work: Callable[[str], T], items: Iterable[str]) -> list[T]:
    """The results for all items, in their order; a few are worked on at a time. Raises the first error."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(work, items))


@contextlib.contextmanager
def outgoing(name: str, place: str) -> Iterator[Path]:
    """The path of a file to write: the place itself, or a temporary file that becomes an object at the end.

    Args:
      name: what the user calls it, such as --output.
      place: path or address.

    Raises:
      UserError: the object cannot be written.
    """
    if not scheme_of(place):
        yield Path(place)
        return
    check_object(name, place)
    with tempfile.TemporaryDirectory(prefix="convs2s_jax-") as folder:
        path = Path(folder) / "file"
        yield path
        try:
            write(place, path.read_bytes())
        except OSError as error:
            raise unusable(name, place, error) from error


def check_object(name: str, address: str) -> None:
    """Refuse the address of an object to write whose bucket cannot be listed.

    Args:
      name: what the user calls it, such as --output.
      address: of the object.

    Raises:
      UserError: it names no object, there is no such bucket, or it cannot be listed with these credentials.
    """
    if address.count("/") < 3 or address.endswith("/"):
        raise UserError(f"{name}={address} names no object: write {scheme_of(address)}://BUCKET/NAME")
    try:
        exists(address)
    except OSError as error:
        raise unusable(name, address, error) from error


def unusable(name: str, address: str, error: OSError) -> UserError:
    """The error for an address that cannot be read or written."""
    return UserError(f"{name}={address} cannot be used: {error.strerror}; {CREDENTIALS}")


def _split(address: str) -> tuple[tuple[str, str], str]:
    """(scheme, bucket) and the name of an object."""
    bucket, _, name = address.partition("://")[2].partition("/")
    if not bucket:
        raise UserError(f"{address} names no bucket: write {scheme_of(address)}://BUCKET/NAME")
    return (scheme_of(address), bucket), name


def _opened(bucket: tuple[str, str]) -> Any:
    """TensorStore's driver for a bucket. It opens no connection."""
    scheme, name = bucket
    return _driver(json.dumps(SPECS[scheme](name, os.environ)), os.environ.get(GOOGLE))


@functools.cache
def _driver(spec: str, emulator: str | None) -> Any:
    """One driver for each specification: it keeps connections and credentials."""
    del emulator  # TensorStore takes it from the environment
    import tensorstore  # not needed without a store, and slow to import

    return tensorstore.KvStore.open(json.loads(spec)).result()


def _listed(bucket: tuple[str, str], prefix: str) -> list[str]:
    """All keys that begin with a prefix."""
    import tensorstore

    end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""  # the least text above all of them
    found = _opened(bucket).list(tensorstore.KvStore.KeyRange(prefix, end)).result()
    return [key for key in map(bytes.decode, found) if key.startswith(prefix)]  # emulators list more than asked for


def _google(bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """A bucket of Google Cloud Storage. STORAGE_EMULATOR_HOST names an emulator, as for Google's own libraries."""
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if emulator and GOOGLE not in environment:
        os.environ[GOOGLE] = emulator if scheme_of(emulator) else f"http://{emulator}"
    return {"driver": "gcs", "bucket": bucket, "gcs_request_retries": RETRIES}


def _amazon(bucket: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """A bucket of S3, or of a store with its interface, at the endpoint that AWS's own libraries would use."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "s3_request_retries": RETRIES}
    if endpoint:
        spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region:
        spec |= {"aws_region": region}
    if environment.get("AWS_ACCESS_KEY_ID"):  # else files, web identities and metadata servers are tried
        spec |= {"aws_credentials": {"type": "environment"}}
    return spec


SPECS: Mapping[str, Callable[[str, Mapping[str, str]], dict[str, Any]]] = {"gs": _google, "s3": _amazon}
"""The specification of TensorStore's driver, by scheme."""


def _tried(address: str, action: Callable[[], T]) -> T:
    """The result of an action; whatever TensorStore raises becomes an OSError with one line and the address."""
    try:
        return action()
    except (OSError, UserError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, first_line(error).partition(" [")[0], address) from error
