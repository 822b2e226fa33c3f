"""Imports of checkpoints, dictionaries and codes in object stores: those of local files, but for the places."""

import json

import numpy as np
import pytest

from convs2s_jax.commands import import_fairseq
from convs2s_jax.core import command_line, stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir
from tests import tiny
from tests.helpers import drills_but
from tests.interop.fairseq import examples
from tests.stores import bucket, temporary  # noqa: F401  (fixtures)

FOLDER = "gs://bucket/fairseq"


@pytest.fixture
def folder(tmp_path):
    """A folder of fairseq's files: a checkpoint with and without torch's format, dictionaries, and codes."""
    folder = tmp_path / "fairseq"
    folder.mkdir()
    _, args, tensors = examples.case()
    examples.save(folder, examples.content(tensors, args, examples.buffers(tensors)))
    np.savez(folder / "state.npz", **tensors)
    (folder / "config.json").write_text(json.dumps(args))
    for language in ("de", "en"):
        path = folder / f"dict.{language}.txt"
        size = len(path.read_text().splitlines())
        path.write_text("".join(f"{word} 1\n" for word in ["ab@@", *(chr(0x4E00 + i) for i in range(size - 1))]))
    (folder / "codes").write_text("a b\n")
    return folder


def upload(folder):
    for path in folder.iterdir():
        stores.write(f"{FOLDER}/{path.name}", path.read_bytes())


@pytest.mark.parametrize("name", drills_but(["checkpoint.pt", "state.npz"], kept=["checkpoint.pt"]))
def test_an_import_from_a_store_is_that_of_local_files(name, folder, temporary, tmp_path, bucket, monkeypatch):  # noqa: F811
    upload(folder)
    stores.write(f"{FOLDER}/train.de-en.de.bin", b"data that nothing needs")
    here, there = (tmp_path / "here", tmp_path / "there")
    told = examples.bring_in(folder / name, here, codes=(folder / "codes", folder / "codes"))
    read, pieces = [], stores.pieces
    monkeypatch.setattr(stores, "pieces", lambda address, **options: read.append(address) or pieces(address, **options))
    found = examples.bring_in(
        folder / name,
        there,
        checkpoints=[f"{FOLDER}/{name}"],
        dicts=f"{FOLDER}/",
        codes=(f"{FOLDER}/codes", f"{FOLDER}/codes"),
    )
    needed = [name, "codes", "dict.de.txt", "dict.en.txt", *(["config.json"] if name.endswith(".npz") else [])]
    assert sorted(read) == sorted(f"{FOLDER}/{each}" for each in needed)
    expected = [line.replace(str(here), str(there)).replace(str(folder), FOLDER) for line in told]
    assert found == expected
    assert any(f"{FOLDER}: dict.de.txt and dict.en.txt have no checksums" in line for line in found)
    [step] = run_folder.finished(run_folder.checkpoints(here))
    own, other = (tiny.digests(run, step) for run in (here, there))
    assert (own["params"], own["optimizer"]) == (other["params"], other["optimizer"])
    mine, theirs = (vocabulary.load(run_folder.vocabulary(run)) for run in (here, there))
    assert run_folder.fingerprints(mine) == run_folder.fingerprints(theirs)
    assert examples.held(there)[3][derived_workdir.IMPORTED] == [f"{FOLDER}/{name}"]
    assert not any(temporary.iterdir())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda: stores.delete(f"{FOLDER}/checkpoint.pt"),
            "--checkpoint=FOLDER/checkpoint.pt: there is no such object",
        ),
        (
            lambda: stores.write(f"{FOLDER}/checkpoint.pt", b"bad"),
            "--checkpoint=FOLDER/checkpoint.pt is not a checkpoint that torch can read: it is damaged",
        ),
        (
            lambda: stores.delete(f"{FOLDER}/dict.en.txt"),
            "FOLDER/dict.en.txt is missing; set --dicts to the folder with dict.de.txt and dict.en.txt",
        ),
        (
            lambda: stores.write(f"{FOLDER}/dict.en.txt", b"one 1\n"),
            "FOLDER/dict.en.txt has 1 entries and 4 special symbols",
        ),
        (lambda: stores.delete(f"{FOLDER}/codes"), "--bpe_codes=FOLDER/codes: there is no such object"),
        (lambda: stores.write(f"{FOLDER}/codes", b"a\n"), "FOLDER/codes, line 1: 'a' is not a pair of symbols"),
    ],
    ids=["no checkpoint", "damaged", "no dictionary", "short dictionary", "no codes", "bad codes"],
)
def test_messages_state_addresses_and_no_copy_is_left(change, sentence, folder, temporary, tmp_path, bucket):  # noqa: F811
    upload(folder)
    change()
    codes = (None, None) if "dict" in sentence else (f"{FOLDER}/codes", f"{FOLDER}/codes")
    with pytest.raises(UserError) as caught:
        examples.bring_in(folder, tmp_path / "run", checkpoints=[f"{FOLDER}/checkpoint.pt"], dicts=FOLDER, codes=codes)
    assert str(caught.value).startswith(sentence.replace("FOLDER", FOLDER))
    assert str(temporary) not in str(caught.value)
    assert not any(temporary.iterdir())
    assert not (tmp_path / "run").exists()


def test_all_files_of_the_command_may_be_in_a_store():
    given = {
        name: f"gs://bucket/{name}" for name in ("checkpoint", "dicts", "src_spm", "tgt_spm", "bpe_codes", "config")
    }
    values, _ = command_line.parse(import_fairseq.COMMAND, [f"--{name}={place}" for name, place in given.items()])
    assert {name: value for name, value in values.items() if isinstance(value, str)}.items() <= given.items()


def test_checkpoints_of_one_folder_keep_their_names(folder, tmp_path, bucket):  # noqa: F811
    _, args, tensors = examples.case()
    for name in ("one.pt", "two.pt"):
        examples.save(folder, examples.content(tensors, args), name)
    upload(folder)
    found = examples.bring_in(
        folder,
        tmp_path / "run",
        checkpoints=[f"{FOLDER}/one.pt", f"{FOLDER}/two.pt"],
        workdirs=[tmp_path / "a", tmp_path / "b"],
        dicts=FOLDER,
    )
    for name in ("one.pt", "two.pt"):
        assert [line for line in found if line.startswith(f"--checkpoint={FOLDER}/{name}: momentum starts from zero")]
