"""Dictionaries whose pieces were cut with subword-nmt: text without marks goes in and comes out."""

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data import vocabulary
from convs2s_jax.data.bpe_codes import CodedWords
from convs2s_jax.interop.fairseq import dictionaries
from convs2s_jax.training.run import run_folder
from tests.interop.fairseq import examples

PIECES = ("Ap@@", "fel", "l@@", "a@@", "fa@@")
"""What `codes` make of "Apfel", "falx", ..."""


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "bpecodes"
    path.write_text("#version: 0.2\nA p\ne l</w>\nf el</w>\nf a\n")
    return path


def write_pieces(folder, language, size):
    words = [*PIECES, *map(chr, range(ord("A"), ord("A") + size - 4 - len(PIECES)))]
    (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))


@pytest.fixture
def folder(tmp_path):
    for language in ("de", "en"):
        write_pieces(tmp_path, language, 12)
    return tmp_path


def test_codes_are_those_of_their_side_and_come_back(codes, folder):
    other = folder / "others"
    other.write_text("A p\nf a\nfe l</w>\n")
    found = dictionaries.read(folder, ("de", "en"), ("", ""), (codes, other))
    assert isinstance(found.src.segmenter, CodedWords)
    assert [found.src.token(i) for i in found.src.encode(["Apfel"])[0]] == ["Ap@@", "fel"]
    assert UNK in found.tgt.encode(["Apfel"])[0]
    assert [side.segmenter.version for side in (found.src, found.tgt)] == ["0.2", "0.1"]
    assert found.src.decode([4, 5, 9]) == "Apfel A"
    (folder / "out").mkdir()
    dictionaries.write(found.src, folder / "out", "de")
    assert (folder / "out" / "codes.de").read_bytes() == codes.read_bytes()
    assert (folder / "out" / "dict.de.txt").read_bytes() == (folder / "dict.de.txt").read_bytes()
    again = dictionaries.read(folder / "out", ("de", "de"), ("", ""), (folder / "out" / "codes.de", codes))
    assert again.src.fingerprint == found.src.fingerprint


def test_codes_that_do_not_fit_are_refused(codes, folder):
    (folder / "none").write_text("x y\n")
    with pytest.raises(UserError, match="none: the codes produce 0 of the 3 pieces of several letters in the word"):
        dictionaries.read(folder, ("de", "en"), ("", ""), (codes, folder / "none"))


def test_an_import_keeps_the_codes_or_says_that_there_are_none(codes, tmp_path):
    _, args, tensors = examples.case()
    file = examples.save(tmp_path, examples.content(tensors, args))
    plain = examples.bring_in(file, tmp_path / "plain")
    assert "--bpe_codes" not in " ".join(plain)
    for language, side in (("de", "encoder"), ("en", "decoder")):
        write_pieces(tmp_path, language, len(tensors[f"{side}.embed_tokens.weight"]))
    told = examples.bring_in(file, tmp_path / "marked")
    assert [one for one in told if "import with --bpe_codes=FILE, or join its output with sed -E" in one]
    told = examples.bring_in(file, tmp_path / "coded", bpe_codes=(str(codes),))
    assert "--bpe_codes" not in " ".join(told)
    found = vocabulary.load(run_folder.vocabulary(tmp_path / "coded"))
    assert found.tgt.decode(found.tgt.encode(["Apfel A"])[0]) == "Apfel A"
