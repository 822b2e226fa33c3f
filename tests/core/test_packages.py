"""What needs a package that is not there says how to install it."""

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.packages import check_installed


def test_missing_packages_are_named_with_their_extra():
    check_installed("testing", ["pytest"], "test")
    with pytest.raises(UserError, match=r"serving needs no_such_package: pip install '\.\[serve\]'"):
        check_installed("serving", ["pytest", "no_such_package"], "serve")
