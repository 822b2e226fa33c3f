"""Vocabularies on disk: saved and found again, damaged, missing."""

import random
import re

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import bpe_codes, labels, pieces, vocabulary, words
from tests.data.vocabularies import CONFIGS, build


def test_models_with_other_special_ids_become_lists_of_their_pieces(tmp_path):
    """spm_train's own ids: <unk> 0, <s> 1, </s> 2 and no <pad>."""
    spm = pytest.importorskip("sentencepiece")
    lines = [f"{i} of 40" for i in range(40)]
    for side in ("src", "tgt"):
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(tmp_path / side), vocab_size=17, minloglevel=3
        )
    found = vocabulary.load(tmp_path)
    assert isinstance(found.src, pieces.ListedPieces)
    processor = spm.SentencePieceProcessor(model_file=str(tmp_path / "src.model"))
    assert found.src.encode(lines) == [[i + 1 for i in ids] for ids in processor.encode(lines)]
    assert [found.src.decode(ids) for ids in found.src.encode(lines)] == lines
    vocabulary.save(found, tmp_path / "vocab")
    assert vocabulary.load(tmp_path / "vocab") == found


NOT_UTF_8 = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0a\n\x01\xff\x15\x00\x00\x00\x00\x18\x01"
"""A model of <unk> and of a piece that is one byte."""


@pytest.mark.parametrize("content", [b"", b"garbage", NOT_UTF_8])
def test_damaged_model_is_refused(tmp_path, content):
    (tmp_path / "joint.model").write_bytes(content)
    with pytest.raises(UserError, match=r"joint.model is not a SentencePiece model: it is damaged"):
        vocabulary.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1\nb\n", r"src.txt, line 2: 'b' is not a word and its count, as in 'house 12'"),
        ("a 1\nb x\n", r"src.txt, line 2: 'b x' is not a word and its count"),
        (
            "a 1\nb 1\na 1\n",
            r"src.txt, line 3: 'a' is already in the list; use the list that the model was",
        ),
        ("<pad> 1\n", r"src.txt, line 1: '<pad>' is already in the list"),
    ],
)
def test_damaged_word_list_is_refused(tmp_path, content, message):
    for side in ("src", "tgt"):
        (tmp_path / f"{side}.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        vocabulary.load(tmp_path)


# --- folders


def test_saving_leaves_nothing_else(tmp_path):
    folder = tmp_path / "vocab"
    for cfg in (CONFIGS[3], CONFIGS[3], CONFIGS[4], CONFIGS[0]):
        vocabulary.save(build(cfg), folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checksums.json", "src.model", "tgt.model", "vocab"]


def test_failed_saving_leaves_what_was_there(tmp_path):
    class Broken(words.WordList):
        def save(self, path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    old = build(CONFIGS[3])
    vocabulary.save(old, tmp_path / "vocab")
    with pytest.raises(
        UserError, match="vocab cannot be written: No space left on device; free disk space or choose another folder"
    ):
        vocabulary.save(vocabulary.Vocabularies(old.tgt, Broken(("a",), (1,))), tmp_path / "vocab")
    assert vocabulary.load(tmp_path / "vocab") == old
    assert [path.name for path in tmp_path.iterdir()] == ["vocab"]


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "vocab").write_text("mine")
    with pytest.raises(UserError, match="vocab cannot be written: Not a directory"):
        vocabulary.save(build(CONFIGS[3]), tmp_path / "vocab")
    assert (tmp_path / "vocab").read_text() == "mine"


@pytest.mark.parametrize(("names", "sides"), [((), "any"), (("src.txt",), "a target"), (("tgt.txt",), "a source")])
def test_missing_vocabulary_is_named(tmp_path, names, sides):
    for name in names:
        (tmp_path / name).write_text("a 1\n")
    with pytest.raises(UserError, match=f"{tmp_path} contains no vocabulary for {sides} side: train first"):
        vocabulary.load(tmp_path)


def test_two_vocabularies_for_one_side_are_refused(tmp_path):
    (tmp_path / "src.txt").write_text("a 1\n")
    (tmp_path / "src.model").write_text("")
    with pytest.raises(UserError, match=r"contains both src.model and src.txt: delete one of them"):
        vocabulary.load(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "words", "pieces", "codes", "labels"])
def test_a_flipped_bit_or_a_cut_is_refused(tmp_path, kind):
    listed = words.WordList(("\u2581a", "b"), (2, 1))
    made = {
        "bpe": lambda: build(CONFIGS[1]).src,
        "words": lambda: build(CONFIGS[4]).src,
        "pieces": lambda: pieces.ListedPieces(build(CONFIGS[1]).src.model, listed),
        "codes": lambda: bpe_codes.CodedWords(
            bpe_codes.Codes((("b", "c</w>"),)), words.WordList(("bc", "a@@"), (2, 1))
        ),
        "labels": lambda: labels.Labels(("no", "yes")),
    }[kind]()
    vocabulary.save(vocabulary.Vocabularies(made, made), tmp_path / "vocab")
    rng = random.Random(16)
    for path in sorted((tmp_path / "vocab").iterdir()):
        whole = path.read_bytes()
        for bit in rng.sample(range(8 * len(whole)), min(40, 8 * len(whole))):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            for data in (bytes(flipped), whole[: bit // 8]):
                path.write_bytes(data)
                try:
                    found = vocabulary.load(tmp_path / "vocab")
                except UserError as error:
                    assert re.match(rf"^{path} is damaged .*: restore it, or delete ", str(error))  # noqa: PT017
                else:
                    assert path.name == "checksums.json"
                    assert found.src == made  # a line end of the list of checksums
        path.write_bytes(whole)
    assert vocabulary.load(tmp_path / "vocab").src == made


def test_a_file_that_was_edited_on_purpose_counts_without_the_checksums(tmp_path):
    vocabulary.save(build(CONFIGS[4]), tmp_path)
    (tmp_path / "joint.txt").write_text("a 1\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"joint.txt is damaged or was edited .* delete .*checksums.json to keep deliberate"
    ):
        vocabulary.load(tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert vocabulary.load(tmp_path).src.words == ("a",)


def test_a_missing_file_is_named(tmp_path):
    vocabulary.save(build(CONFIGS[4]), tmp_path)
    (tmp_path / "joint.txt").unlink()
    with pytest.raises(UserError, match=r"joint.txt cannot be read \(No such file or directory\): restore it"):
        vocabulary.load(tmp_path)
