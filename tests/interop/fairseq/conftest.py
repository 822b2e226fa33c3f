"""Files are read within the process of the tests, except where its limits are tested."""

import pytest

from convs2s_jax.interop.fairseq import checkpoint, untrusted


@pytest.fixture(autouse=True)
def within_this_process(request, monkeypatch):
    """Starting torch anew for each file takes seconds. A test with the fixture `isolated` does so."""

    def contained(path, _where):
        result, arrays = untrusted.result_of(path.read_bytes(), arrays=path.suffix == ".npz")
        return result, {f"arr_{i}": array for i, array in enumerate(arrays)}

    if "isolated" not in request.fixturenames:
        monkeypatch.setattr(checkpoint, "_contained", contained)


@pytest.fixture
def isolated():
    """Files are read in a process of their own, as by the command."""
