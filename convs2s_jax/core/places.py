"""Places that a user specifies: paths in the local file system, and addresses with a scheme such as gs://."""

import os
import posixpath
import re
from pathlib import Path
from typing import Any, TypeVar

from convs2s_jax.core.config import check

T = TypeVar("T")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
STORES = ("gs", "s3")
"""Schemes of object stores."""


def scheme_of(place: str) -> str:
    """Return the scheme of an address in lower case: "gs" for gs://bucket/file, "" for a path."""
    found = _SCHEME.match(place)
    return found[1].lower() if found else ""


def check_place(name: str, value: Any, *, stores: bool) -> None:
    """Reject an address with an unsupported scheme.

    Args:
      name: of the flag or field, such as --output or data.dir.
      value: a string, a Path, or a (nested) list or tuple of them; other values are accepted.
      stores: whether it may be in an object store.

    Raises:
      UserError: an address has an unsupported scheme, no bucket, or a part . or ..
    """
    if isinstance(value, Path):
        joined = re.match(f"({'|'.join(STORES)}):/", str(value))  # a Path has no double slashes
        check(joined is None, f"{name} is {value}: pass an address as a string, since a Path drops a slash")
    elif isinstance(value, str):
        scheme = scheme_of(value)
        supported = STORES if stores else ()
        others = f", or {' or '.join(f'{store}://' for store in supported)}" if supported else ""
        check(
            not scheme or scheme in supported,
            f"{name} is {value}: {scheme}:// is not supported here; use a path on this machine or on a file system "
            f"mounted on it{others}",
        )
        check(
            not scheme or re.match(rf"{scheme}://[^/]", value) is not None,
            f"{name} is {value}: use {scheme}://BUCKET/NAME",
        )
        check(
            not scheme or not {".", ".."} & {*value.split("/")},
            f"{name} is {value}: remove the parts . and .., which object stores do not resolve",
        )
    elif isinstance(value, list | tuple):
        for one in value:
            check_place(name, one, stores=stores)


def with_home(value: T) -> T:
    """Return a value of a flag with the home folder in place of ~ or a leading ~/, which shells leave after --flag=."""
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return type(value)(os.path.expanduser(value))
    if isinstance(value, tuple):
        return type(value)(map(with_home, value))
    return value


def check_no_comma(name: str, place: str) -> None:
    """Raise UserError for a new workdir with a comma in its path, because commands split lists of them at commas."""
    check(
        "," not in place,
        f"{name}={place} contains a comma, at which decoding and other commands split lists of workdirs: choose a path "
        "without one",
    )


def check_utf8(name: str, place: str | Path) -> None:
    """Raise UserError for a workdir whose path is not valid UTF-8: checkpoints and logs name it."""
    path = str(place if scheme_of(str(place)) else Path(place).absolute())
    check(
        path.encode(errors="replace").decode() == path,
        f"{name}={place}: its path is not valid UTF-8, which checkpoints require; rename the folder",
    )


def resolved(place: str) -> str:
    """Return a string that is the same for all spellings of a place, to compare places."""
    return posixpath.normpath(place) if scheme_of(place) else str(Path(place).resolve())


def joined(folder: str, *names: str) -> str:
    """Return the path or address of a file in a folder."""
    return "/".join([folder.rstrip("/"), *names]) if scheme_of(folder) else str(Path(folder, *names))
