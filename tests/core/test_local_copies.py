"""Files and folders in object stores that a command reads through a local copy."""

import re

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.local_copies import incoming, incoming_folder
from tests.stores import bucket, temporary  # noqa: F401  (fixtures)


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_file_is_read_from_its_address(bucket, temporary):  # noqa: F811
    stores.write("gs://bucket/a.txt", b"\x00one")
    with incoming("--input", "gs://bucket/a.txt") as copy:
        assert (copy.name, copy.read_bytes()) == ("a.txt", b"\x00one")
        with (
            pytest.raises(UserError, match=r"^gs://bucket/a\.txt is bad$"),
            incoming("--x", "gs://bucket/a.txt") as one,
        ):
            raise UserError(f"{one} is bad")
    with (
        pytest.raises(UserError, match=r"^--input=gs://bucket/b: there is no such object$"),
        incoming("--input", "gs://bucket/b"),
    ):
        pytest.fail("there is a copy")
    assert list(temporary.iterdir()) == []


def test_a_file_larger_than_the_memory_is_copied_in_ranges(bucket, temporary, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stores, "RANGE", 10)
    monkeypatch.setattr(stores, "read", lambda _: pytest.fail("read as a whole"))
    content = bytes(range(95))
    stores.write("gs://bucket/long", content)
    with incoming("--input", "gs://bucket/long") as copy:
        assert copy.read_bytes() == content


def test_what_is_wanted_of_a_folder_is_copied(bucket, temporary):  # noqa: F811
    fill(bucket / "in", ("ab", "a/c", "ad", "b"))
    with incoming_folder("--dicts", "gs://bucket/in/", lambda name: name not in ("ad", "b")) as folder:
        assert sorted(path.name for path in folder.rglob("*")) == ["a", "ab", "c"]
        assert (folder / "a" / "c").read_text() == "a/c"
        with (
            pytest.raises(UserError, match=r"^gs://bucket/in/b is missing$"),
            incoming_folder("--dicts", "gs://bucket/in/", lambda _: False) as other,
        ):
            raise UserError(f"{other}/b is missing")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["../other", "{}/other", "a//other", "./other"])
def test_no_file_outside_the_copy_is_written(name, bucket, temporary, monkeypatch):  # noqa: F811
    """In a store, these are names like others; whoever writes there must not write here."""
    (temporary / "other").write_text("own")
    name = name.format(temporary)
    monkeypatch.setattr(stores, "names", lambda *_: [name])
    monkeypatch.setattr(stores, "read", lambda _: b"theirs")
    with (
        pytest.raises(UserError, match=f"^--dicts=gs://bucket/in cannot be used: {re.escape(name)} is not the name"),
        incoming_folder("--dicts", "gs://bucket/in", lambda _: True),
    ):
        pytest.fail("there is a copy")
    assert (temporary / "other").read_text() == "own"
