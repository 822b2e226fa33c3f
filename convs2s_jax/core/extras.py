"""Optional packages, installed by extras."""

import importlib.util
from collections.abc import Sequence

from convs2s_jax.core.errors import UserError


def check_installed(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError if an optional package is missing, and state the extra of this package that installs it.

    Packages are given by their import names; `what` is the feature that needs them, such as "serving".
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"{what} needs {', '.join(missing)}: pip install '.[{extra}]'")
