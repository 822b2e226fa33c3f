"""Optional packages, installed by extras, and versions of packages."""

import importlib.util
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError


def check_installed(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError if an optional package is missing, and state the extra of this package that installs it.

    Packages are given by their import names; `what` is the feature that needs them, such as "serving".
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"{what} needs {', '.join(missing)}: pip install '.[{extra}]'")


def versions(*names: str) -> str:
    """Return the versions of installed libraries and of Python, as in "jax 0.10.2, Python 3.11.7"."""
    return ", ".join([*(f"{name} {version(name)}" for name in names), f"Python {platform.python_version()}"])


def program() -> dict[str, str]:
    """Return what several processes of one command must have in common: versions of libraries, and all of our files."""
    names, root = ("jax", "jaxlib", "flax", "orbax-checkpoint", "tensorstore"), Path(__file__).parents[1]
    sums = {f"checksum of {path.relative_to(root.parent)}": checksum(path.read_bytes()) for path in root.rglob("*.py")}
    return {f"version of {name}": version(name) for name in names} | sums
