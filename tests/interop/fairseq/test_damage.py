"""Damage to files of fairseq: the same numbers, an announcement or one sentence, never other numbers in silence."""

import json
import random

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq import checkpoint, dictionaries, files
from tests.helpers import drills_but
from tests.interop.fairseq import examples, hostile

SEED = 16


def archive(folder, values):
    return examples.save(folder, values)


def without_checksums(folder, values):
    import torch

    torch.serialization.set_crc32_options(False)
    try:
        return examples.save(folder, values)
    finally:
        torch.serialization.set_crc32_options(True)


def older(folder, values):
    import torch

    examples.save(folder, values)
    torch.save(values, folder / "checkpoint.pt", _use_new_zipfile_serialization=False)
    return folder / "checkpoint.pt"


def arrays(folder, values):
    examples.save(folder, values)
    np.savez(folder / "state_dict.npz", **{name: value.numpy() for name, value in values["model"].items()})
    (folder / "config.json").write_text(json.dumps(vars(values["args"])))
    return folder / "state_dict.npz"


FORMS = {"archive": archive, "without checksums": without_checksums, "older": older, "arrays": arrays}
SILENT = {
    "archive": "",
    "without checksums": "without checksums",
    "older": "before PyTorch 1.6",
    "arrays": "config.json",
}


@pytest.fixture(scope="module")
def values():
    return examples.whole()


def outcomes(folder, values, form, flips, cuts):
    """What becomes of one file after each flip and each cut."""
    path, chance = FORMS[form](folder, values), random.Random(SEED)
    expected, content = checkpoint.load(path), path.read_bytes()
    assert form == "archive" or expected.unchecked
    damaged = [hostile.flipped(content, chance.randrange(8 * len(content))) for _ in range(flips)]
    damaged += [content[: chance.randrange(len(content))] for _ in range(cuts)]
    found = []
    for one in damaged:
        path.write_bytes(one)
        found.append(hostile.outcome(path, expected))
    return found


@pytest.mark.parametrize("form", ["archive", "arrays"])
def test_one_flipped_bit_or_a_cut_is_refused_or_changes_nothing(values, tmp_path, form):
    found = outcomes(tmp_path, values, form, flips=30, cuts=6)
    assert set(found) <= {"exact", "refused"}
    assert found.count("refused") > 20, "most bits of a checkpoint are of its numbers"


@pytest.mark.drill
@pytest.mark.parametrize("form", FORMS)
def test_many_flips_and_cuts_are_noticed_or_announced(values, tmp_path, form, tally):
    found = outcomes(tmp_path, values, form, flips=250, cuts=75)
    tally(tries=len(found), losses=found.count("wrong"))


@pytest.mark.parametrize("form", drills_but(FORMS, kept=[*FORMS][:1]))
def test_files_without_checksums_are_announced(values, tmp_path, form):
    told = " ".join(examples.bring_in(FORMS[form](tmp_path, values), tmp_path / "run"))
    assert "dict.de.txt and dict.en.txt have no checksums" in told
    assert ("damage would go unnoticed" in told) == (form != "archive")
    assert SILENT[form] in told


def test_what_is_exported_has_checksums_and_is_read_back(values, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    examples.bring_in(archive(tmp_path, values), tmp_path / "run")
    torch.serialization.set_crc32_options(False)
    try:
        examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert files.unchecked(tmp_path / "out" / "x.pt") == ""
    content = (tmp_path / "out" / "x.pt").read_bytes()

    def damaging(path, written):
        with path.open("wb") as file:
            file.write(hostile.flipped(bytes(written), 4 * len(content)))

    monkeypatch.setattr(type(tmp_path), "write_bytes", damaging)
    (tmp_path / "out" / "x.pt").unlink()
    with pytest.raises(UserError, match=r"x.pt"):
        examples.take_out(tmp_path / "run", tmp_path / "out" / "x.pt")
    assert not (tmp_path / "out" / "x.pt").exists()


@pytest.mark.drill
def test_damaged_dictionaries_are_read_or_refused(tmp_path, tally):
    """A dictionary has no checksum, as each import says: a damaged one is read or refused in a sentence."""
    chance, lost = random.Random(SEED), 0
    examples.write_dictionary(tmp_path, "de", 40)
    examples.write_dictionary(tmp_path, "en", 40)
    content = (tmp_path / "dict.de.txt").read_bytes()
    for i in range(325):
        damaged = hostile.flipped(content, chance.randrange(8 * len(content))) if i < 250 else content[: i * 3 % 150]
        (tmp_path / "dict.de.txt").write_bytes(damaged)
        try:
            found = dictionaries.read(tmp_path, ("de", "en"), (None, None))
            lost += found.src.size > 4 + damaged.count(b"\n") + 1
        except UserError as error:
            lost += "\n" in str(error)
    tally(tries=325, losses=lost)
