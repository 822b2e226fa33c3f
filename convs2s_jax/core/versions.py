"""Versions of libraries and of Python, for display."""

import platform
from importlib.metadata import version


def versions(*names: str) -> str:
    """Return the versions of installed libraries and of Python, as in "jax 0.10.2, Python 3.11.7"."""
    return ", ".join([*(f"{name} {version(name)}" for name in names), f"Python {platform.python_version()}"])
