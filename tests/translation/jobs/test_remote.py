"""Decoding with files in object stores; `make drills` tries the real protocols."""

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs.decoding import decode
from convs2s_jax.translation.jobs.options import Options
from tests.stores import bucket  # noqa: F401  (a fixture)

LINES = "Norway\n5 kilowatts\nNorway and Spain\n"


@pytest.fixture(autouse=True)
def run(bucket, trained):  # noqa: F811
    """The run and an input in the store."""
    for path in trained.rglob("*"):
        if path.is_file():
            stores.write(f"gs://bucket/run/{path.relative_to(trained)}", path.read_bytes())
    stores.write("gs://bucket/in", LINES.encode())


def decoded(folder, **options):
    told = []
    given = {"workdir": ("gs://bucket/run",), "input": "gs://bucket/in", "output": f"{folder}/out", **options}
    decode(Options(**given), tell=told.append)
    return (folder / "out").read_bytes(), told


def test_an_input_in_a_store_gives_what_a_local_one_gives(trained, tmp_path):
    (tmp_path / "in").write_text(LINES)
    here, _ = decoded(tmp_path, workdir=(str(trained),), input=f"{tmp_path}/in")
    there, told = decoded(tmp_path, reference=("gs://bucket/in",))
    assert there == here
    assert [sentence for sentence in told if sentence.startswith("BLEU")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": "gs://bucket/none"}, r"^--prefix=gs://bucket/none: there is no such object$"),
        ({"input": "gs://bucket/odd"}, r"^gs://bucket/odd, line 2: byte 0xff is not UTF-8"),
    ],
    ids=str,
)
def test_mistakes_are_told_of_their_address_and_leave_no_folder_here(options, message, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/copies")
    stores.write("gs://bucket/odd", b"one\n\xff\n")
    with pytest.raises(UserError, match=message):
        decoded(tmp_path, **options)
    assert not list((tmp_path / "copies").iterdir())
