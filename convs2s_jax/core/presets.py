"""Finding the configurations that come with the package, by name."""

import difflib
import os
from pathlib import Path

from convs2s_jax.core.errors import UserError, shortened
from convs2s_jax.core.files import read_text

_PACKAGE = Path(__file__).parents[1]
_LARGEST = 1 << 24
"""Most bytes of a configuration file."""


def folder() -> Path:
    """The folder of the configurations: inside an installed package, beside the package in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def names() -> list[str]:
    """The names of all configurations, sorted."""
    return sorted(path.stem for path in folder().glob("*.py") if path.stem != "__init__")


def find(given: str) -> Path:
    """The configuration file that `--config` names: a path, or the name of one that comes with the package.

    Raises:
      UserError: there is neither.
    """
    if os.path.isfile(given):  # unlike the method of a path, this raises no error for a name that is too long
        return Path(given)
    if given in names():
        return folder() / f"{given}.py"
    near = difflib.get_close_matches(Path(given[-200:]).stem, names(), n=1, cutoff=0.6)
    hint = f"did you mean --config={near[0]}?" if near else f"configurations lie in {folder()}"
    raise UserError(
        f"--config={shortened(given, 1000)}: there is no such file and no configuration of that name; {hint}"
    )


def read(given: str) -> str:
    """The text of the configuration file that `--config` names; errors as in `find` and `files.read_text`."""
    return read_text(find(given), remedy="give a configuration file", most=_LARGEST)
