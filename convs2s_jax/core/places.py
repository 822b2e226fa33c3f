"""Places that a user names: paths of the local file system, and addresses with a scheme such as gs://."""

import re
from typing import Any

from convs2s_jax.core.config import check

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
STORES = ("gs", "s3")
"""Schemes of object stores."""


def scheme_of(place: str) -> str:
    """The scheme of an address, in lower case: "gs" for gs://bucket/file; "" for a path."""
    found = _SCHEME.match(place)
    return found[1].lower() if found else ""


def check_local(name: str, value: Any) -> None:
    """Refuse an address where a path of the local file system belongs.

    Args:
      name: what the user calls it, such as --output or data.dir.
      value: a text or a collection of texts, also nested; other values are let through.

    Raises:
      UserError: a text has a scheme.
    """
    if isinstance(value, str):
        scheme = scheme_of(value)
        check(
            not scheme,
            f"{name} is {value}: {scheme}:// is not supported here; give a path on this machine, or of a file system "
            "mounted on it",
        )
    elif isinstance(value, list | tuple):
        for one in value:
            check_local(name, one)
