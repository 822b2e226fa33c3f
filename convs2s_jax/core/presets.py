"""Find the configuration that `--config` specifies: a file, an object in a store, or a name of the package."""

import contextlib
import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from convs2s_jax.core import local_copies
from convs2s_jax.core.errors import UserError, shortened
from convs2s_jax.core.files import read_text
from convs2s_jax.core.guard import sigterm_interrupts
from convs2s_jax.core.places import scheme_of

_PACKAGE = Path(__file__).parents[1]
_LARGEST = 1 << 24
"""Maximum size of a configuration file in bytes."""


def folder() -> Path:
    """Return the folder of the configurations: inside an installed package, next to the package in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def names() -> list[str]:
    """Return the names of all configurations, sorted."""
    return sorted(path.stem for path in folder().glob("*.py") if path.stem != "__init__")


def find(given: str) -> Path:
    """Return the configuration file that `--config` specifies, by its path or by the name of a built-in configuration.

    A name may end in .py, since the documents also show the names of the files.

    Raises:
      UserError: neither exists, or the path is that of a folder.
    """
    if os.path.isfile(given):  # unlike Path.is_file, this raises no error for a name that is too long
        return Path(given)
    name = given.removesuffix(".py")
    if name in names():
        return folder() / f"{name}.py"
    if os.path.isdir(given):
        raise UserError(f"--config={shortened(given, 1000)} is a folder; use a file, or the name of a configuration")
    raise UserError(
        f"--config={shortened(given, 1000)}: no such file and no configuration of that name exists; "
        f"{_suggestion(Path(given[-200:]).stem)}"
    )


def _suggestion(name: str) -> str:
    """Return advice about an unknown name: all names that contain it, otherwise the closest one."""
    near = [one for one in names() if name and name.lower() in one]
    near = near or difflib.get_close_matches(name, names(), n=1, cutoff=0.6)
    if not near:
        return f"the configurations are in {folder()}"
    return f"did you mean --config={' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"


@contextlib.contextmanager
def opened(given: str) -> Iterator[tuple[Path, str]]:
    """Yield the file that `--config` specifies, or a temporary copy of an object, and its text.

    Raises:
      UserError: as in `find`, `files.read_text` and `local_copies.incoming`.
    """
    with contextlib.ExitStack() as stack:
        if scheme_of(given):
            stack.enter_context(sigterm_interrupts())  # otherwise SIGTERM would leave the copy
            path = stack.enter_context(local_copies.incoming("--config", given, most=_LARGEST))
        else:
            path = find(given)
        yield path, read_text(path, remedy="choose a configuration file", most=_LARGEST)


def read(given: str) -> str:
    """Return the text of the configuration that `--config` specifies. Errors as in `opened`."""
    with opened(given) as (_, text):
        return text
