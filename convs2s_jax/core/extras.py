"""Packages that only a part of the program needs, installed by an extra."""

import importlib.util
from collections.abc import Sequence

from convs2s_jax.core.errors import UserError


def check_installed(what: str, packages: Sequence[str], extra: str) -> None:
    """Refuse what cannot be done without a package that is not installed.

    Args:
      what: needs them, for the message: "serving".
      packages: their names for an import.
      extra: of this package that installs them.

    Raises:
      UserError: how to install what is missing.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"{what} needs {', '.join(missing)}: pip install '.[{extra}]'")
