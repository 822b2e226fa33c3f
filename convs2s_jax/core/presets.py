"""Finding the configurations that come with the package, by name."""

import difflib
from pathlib import Path

from convs2s_jax.core.errors import UserError

_PACKAGE = Path(__file__).parents[1]


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
    if Path(given).is_file():
        return Path(given)
    if given in names():
        return folder() / f"{given}.py"
    near = difflib.get_close_matches(Path(given).stem, names(), n=1, cutoff=0.6)
    hint = f"did you mean --config={near[0]}?" if near else f"configurations lie in {folder()}"
    raise UserError(f"--config={given}: there is no such file and no configuration of that name; {hint}")
