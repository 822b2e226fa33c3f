"""Files are read within the process of the tests, except where its limits are tested."""

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint, untrusted


@pytest.fixture(autouse=True)
def within_this_process(request, monkeypatch):
    """Starting torch anew for each file takes seconds. A test with the fixture `isolated` does so."""

    def read(path, where):
        try:
            text, arrays = untrusted.read(path)
        except untrusted.RefusedError as error:
            raise UserError(f"{where} {error}") from error
        return untrusted.decoded(text, {f"arr_{i}": array for i, array in enumerate(arrays)})

    if "isolated" not in request.fixturenames:
        monkeypatch.setattr(checkpoint, "read", read)


@pytest.fixture
def isolated():
    """Files are read in a process of their own, as by the command."""
