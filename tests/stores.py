"""An object store for tests within one process: TensorStore's driver for folders in the place of that for buckets."""

from pathlib import Path

import pytest

from convs2s_jax.core import stores


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files are the objects of gs://bucket."""

    def folder(name: str, _: object) -> dict[str, str]:
        return {"driver": "file", "path": f"{tmp_path}/{name}/"}

    monkeypatch.setattr(stores, "SPECS", {"gs": folder})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "bucket"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders, in every test of a module that imports this."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was written ("write") and deleted ("delete") so far, in order, with its address."""
    made: list[tuple[str, str]] = []
    write, delete = stores.write, stores.delete

    def noted_write(address: str, content: bytes) -> None:
        made.append(("write", address))
        write(address, content)

    def noted_delete(address: str) -> None:
        made.append(("delete", address))
        delete(address)

    monkeypatch.setattr(stores, "write", noted_write)
    monkeypatch.setattr(stores, "delete", noted_delete)
    return made
