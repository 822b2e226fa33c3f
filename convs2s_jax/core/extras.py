"""Optional packages, installed by extras."""

import importlib.util
from collections.abc import Sequence

from convs2s_jax.core.errors import UserError


def check_installed(what: str, packages: Sequence[str], extra: str) -> None:
    """Check that optional packages are installed.

    Args:
      what: the feature that needs them, for the message: "serving".
      packages: their import names.
      extra: the extra of this package that installs them.

    Raises:
      UserError: a package is missing; the message states how to install it.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"{what} needs {', '.join(missing)}: pip install '.[{extra}]'")
