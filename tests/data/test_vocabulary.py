"""Vocabularies: fairseq's ids, text that comes back as it was, what a text does not allow, folders and their damage."""

import random
import re
import unicodedata

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data import pieces, vocabulary
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Labels, Vocabulary, Words
from tests.data.vocabularies import CONFIGS, ODD, SRC, TGT, build
from tests.stores import bucket  # noqa: F401  (a fixture)


@pytest.fixture(params=CONFIGS, ids=lambda cfg: f"{cfg.kind}{'-joint' * cfg.joint}", scope="module")
def cfg(request):
    return request.param


@pytest.fixture(scope="module")
def built(cfg):
    return build(cfg)


# --- the contract of all kinds


def test_sizes_and_special_ids_are_those_asked_for_and_of_fairseq(built, cfg):
    for side in (built.src, built.tgt):
        assert tuple(side.token(i) for i in (BOS, PAD, EOS, UNK)) == SPECIAL
        assert len({side.token(i) for i in range(side.size)}) == side.size
    assert (built.src.size, built.tgt.size) == (cfg.src_size, cfg.src_size if cfg.joint else cfg.tgt_size)
    assert (built.src is built.tgt) == built.joint == cfg.joint


def test_special_ids_are_skipped_and_never_encoded(built):
    """Not even where a text has the names of the symbols."""
    assert built.src.encode(["", "Hund", ""])[::2] == [[], []]
    assert built.src.decode([]) == ""
    ids = built.src.encode([f"{text} <s> </s> <pad>" for text in SRC])
    assert not {BOS, PAD, EOS} & {i for sentence in ids for i in sentence}
    [ids] = built.tgt.encode(["dog runs"])
    text = built.tgt.decode(ids)
    assert built.tgt.decode([BOS, ids[0], PAD, *ids[1:], EOS, PAD]) == text
    assert built.tgt.decode(np.array([*ids, EOS], np.uint16)) == text


def test_unknown_is_written_out(built):
    [ids] = built.src.encode(["Hund 猫 Hund"])
    assert UNK in ids
    assert "<unk>" in built.src.decode(ids)
    assert built.src.decode([UNK], unknown="x").strip() == "x"


def test_same_text_gives_the_same_vocabulary_which_comes_back_from_its_folder(built, cfg, tmp_path):
    again = build(cfg)
    vocabulary.save(built, tmp_path / "runs" / "vocab")
    loaded = vocabulary.load(tmp_path / "runs" / "vocab")
    for other in (again, loaded):
        assert other == built
        assert (other.src.fingerprint, other.tgt.fingerprint) == (built.src.fingerprint, built.tgt.fingerprint)
    assert built.joint or built.src.fingerprint != built.tgt.fingerprint
    assert loaded.joint == built.joint
    assert loaded.tgt.encode(TGT) == built.tgt.encode(TGT)


# --- subwords


@pytest.mark.parametrize("cfg", CONFIGS[:3], ids=lambda cfg: cfg.kind, indirect=True)
def test_subwords_give_the_text_back_with_spaces_for_white_space_and_nothing_invisible(built):
    def read(text):
        shown = (" " if c.isspace() or c == "\u200b" else "" if unicodedata.category(c) == "Cf" else c for c in text)
        return " ".join("".join(shown).split())

    texts = [*SRC, ODD, "a", "\u202f", "\ta\t", "\u3000a\u3000", "\u2581a\u2581", "läuft!"[:-1], " der   Hund\xa0\xa0 "]
    for text, ids in zip(texts, built.src.encode(texts), strict=True):
        assert UNK not in ids
        assert built.src.decode(ids) == read(text)


def test_options_reach_sentencepiece():
    """Long lines are learned from, digits are split and text is normalised."""
    lines = ["a " * 5000 + "ß", *(f"{i} year 2024" for i in range(50))]
    cfg = VocabularyConfig(src_size=24, joint=True, split_digits=True, normalization="nfkc")
    made = build(cfg, ParallelText(lines, lines, "train")).src
    [ids, normalised] = made.encode(["2024 ß", "²"])
    assert UNK not in [*ids, *normalised]
    assert [token for token in map(made.token, ids) if token.isdigit()] == [*"2024"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_symbols_are_one_unit_wherever_they_occur(kind):
    """Also if they do not occur in the training text, and in random segmentations."""
    lines = [f"<2de> {i} years, a,b" for i in range(50)]
    symbols = ("<2de>", "<2fr>", "a,b", "\u2585")
    cfg = VocabularyConfig(kind=kind, src_size=34, joint=True, symbols=symbols)
    made = build(cfg, ParallelText(lines, lines, "train")).src
    text = "<2fr> 7 years<2de> a,b \u2585"
    [ids] = made.encode([text])
    assert UNK not in ids
    assert made.decode(ids) == text
    for found in (ids, *made.sample([text] * 9, rate=0.5, seed=1)):
        assert [one for one in map(made.token, found) if one in symbols] == ["<2fr>", "<2de>", "a,b"]


def test_a_size_that_the_text_does_not_allow_names_the_nearest():
    with pytest.raises(UserError, match=r"tgt_size is 1000: .* at most \d+ units; use \d+ or less") as e:
        build(VocabularyConfig(src_size=100, tgt_size=1000))
    largest = int(str(e.value).split()[-3])
    assert build(VocabularyConfig(src_size=100, tgt_size=largest)).tgt.size == largest
    with pytest.raises(UserError, match=f"use {largest} or less"):
        build(VocabularyConfig(src_size=100, tgt_size=largest + 1))
    with pytest.raises(UserError, match=r"src_size is 9: .* need \d+ entries; use \d+ or more, or") as e:
        build(VocabularyConfig(src_size=9))
    smallest = int(str(e.value).split("use ")[1].split()[0])
    assert build(VocabularyConfig(src_size=smallest, tgt_size=100)).src.size == smallest
    assert 50 < build(VocabularyConfig(kind="unigram", src_size=66, tgt_size=5000)).tgt.size < 5000
    with pytest.raises(UserError, match=r"data.vocabulary.src_size is 100: .* only empty lines"):
        build(VocabularyConfig(src_size=100), ParallelText(["  ", ""], ["  ", ""], "train"))
    message = "src_size is 100: SentencePiece cannot learn it from the training text: something new"
    assert message in pieces._explain("something new", 100, "src_size")


# --- words


def test_words_are_sorted_by_count_and_then_by_name():
    lines = ["b a c b", "a </s> <unk> d"]
    text = ParallelText(lines, lines, "train")
    words = build(VocabularyConfig(kind="words", min_count=1), text).src
    assert (words.symbols, words.counts) == (("a", "b", "c", "d"), (2, 2, 1, 1))
    assert words.encode(["a b  d\u00a0x </s> <unk> "]) == [[4, 5, 7, UNK, UNK, UNK]]
    assert words.decode([4, UNK, 5]) == "a <unk> b"
    assert build(VocabularyConfig(kind="words", min_count=2), text).src.symbols == ("a", "b")
    assert build(VocabularyConfig(kind="words", min_count=1, src_size=5), text).src.symbols == ("a",)
    with pytest.raises(UserError, match=r"src_size is 10000: no word .*min_count = 3 times \(.* 2 times\); lower"):
        build(VocabularyConfig(kind="words", min_count=3), text)


def test_word_list_is_a_dictionary_of_fairseq(tmp_path):
    content = "the 12\nan\u0301 3\nmadeupword0000 0\nthe 2 #fairseq:overwrite \n<unk> 1 #fairseq:overwrite\n"
    (tmp_path / "joint.txt").write_text(content, encoding="utf-8")
    loaded = vocabulary.load(tmp_path).src
    assert loaded.symbols == ("the", "an\u0301", "madeupword0000", "the", "<unk>")
    assert loaded.encode(["an\u0301 the <unk>"]) == [[5, 7, UNK]]
    loaded.save(tmp_path / "again.txt")
    again = content.replace("overwrite \n", "overwrite\n")  # without the space at the end of a line
    assert (tmp_path / "again.txt").read_text(encoding="utf-8") == again


def test_sample_is_drawn_by_the_seed():
    lines = [chr(0x4E00 + i) * 3 for i in range(200)]
    text = ParallelText(lines, lines, "train")
    cfg = VocabularyConfig(kind="words", min_count=1, sample=20)
    first, again, other = (build(cfg, text, seed).src for seed in (1, 1, 2))
    assert first == again != other
    assert len(first.symbols) == 20
    joint = build(VocabularyConfig(kind="words", min_count=1, sample=20, joint=True), ParallelText(lines, TGT, "train"))
    assert {*first.symbols} < {*joint.src.symbols}


# --- labels


def test_a_label_is_one_token_whatever_it_holds():
    text = ParallelText(["a b", "b c"] * 5, ["not spam", " spam "] * 5, "train")
    found = vocabulary.build_labelled(VocabularyConfig(kind="words"), text, 1).tgt
    assert found == Vocabulary(Labels(), ("not spam", "spam"))
    assert found.encode(["spam", " not spam", "", "eggs"]) == [[5], [4], [], [UNK]]
    assert found.decode([5, EOS]) == "spam"
    assert Vocabulary(Labels(), ("<s>", "x")).encode(["<s>"]) == [[4]]
    with pytest.raises(UserError, match=r"^the training text has fewer than two labels \(none\)"):
        vocabulary.build_labelled(VocabularyConfig(kind="words"), ParallelText(["a", "a"], ["", " "], "train"), 1)


# --- files and folders


NOT_UTF_8 = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0a\n\x01\xff\x15\x00\x00\x00\x00\x18\x01"
"""A model of <unk> and of a piece that is one byte."""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("joint.model", one, r"is not a SentencePiece model: it is damaged") for one in (b"", b"garbage", NOT_UTF_8)),
        ("joint.txt", b"a 1\nb\n", r", line 2: 'b' is not a word and its count, as in 'house 12'"),
        ("joint.txt", b"a 1\nb x\n", r", line 2: 'b x' is not a word and its count"),
        ("joint.txt", b"a " + b"1" * 5000, r", line 1: 'a 111.{,400}is not a word and its count"),
        ("joint.txt", b"a 1\nb 1\na 1\n", r", line 3: 'a' is already in the list; use the list that the model was"),
        ("joint.txt", b"<pad> 1\n", r", line 1: '<pad>' is already in the list"),
        ("joint.labels", b"a\n\nb\n", r", line 2: the label '' is empty, has white space .* list; restore the file"),
        ("joint.labels", b"a\nb\na\n", r", line 3: the label 'a' is empty, "),
        ("joint.labels", b"a\n b\n", r", line 2: the label ' b' is empty, "),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} ?{message}"):
        vocabulary.load(tmp_path)


def test_saving_replaces_the_folder_or_leaves_it(tmp_path):
    folder = tmp_path / "vocab"
    for cfg in (CONFIGS[3], CONFIGS[4], CONFIGS[0]):
        old = build(cfg)
        vocabulary.save(old, folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checksums.json", "src.model", "tgt.model", "vocab"]

    class Broken(Words):
        def content(self, *_):
            raise OSError(28, "No space left on device")

    message = "vocab cannot be written: No space left on device; free disk space or choose another folder"
    with pytest.raises(UserError, match=message):
        vocabulary.save(vocabulary.Vocabularies(old.tgt, Vocabulary(Broken(), ("a",))), folder)
    assert vocabulary.load(folder) == old


def test_only_files_that_were_saved_are_replaced_or_removed(tmp_path):
    """Also behind a link."""
    folder, made = tmp_path / "cache" / "vocab", build(CONFIGS[0])
    (tmp_path / "elsewhere" / "vocab").mkdir(parents=True)
    (tmp_path / "cache").symlink_to("elsewhere")
    (folder / "notes").touch()
    vocabulary.save(made, folder)
    (folder / "joint.txt").write_text("haus 1\n")
    with pytest.raises(
        UserError, match=r"vocab/joint\.txt was not written by this run: move it, or train with its folder"
    ):
        vocabulary.save(made, folder)
    vocabulary.remove(folder.parent)
    assert sorted(path.name for path in folder.iterdir()) == ["joint.txt", "notes"]


@pytest.mark.parametrize(("names", "sides"), [((), "any"), (("src.txt",), "a target"), (("tgt.txt",), "a source")])
def test_missing_and_surplus_vocabularies_are_named(tmp_path, names, sides):
    for name in names:
        (tmp_path / name).write_text("a 1\n")
    with pytest.raises(UserError, match=f"{tmp_path} contains no vocabulary for {sides} side: train first"):
        vocabulary.load(tmp_path)
    for name in ("src.txt", "src.model"):
        (tmp_path / name).write_text("a 1\n")
    with pytest.raises(UserError, match=r"contains both src.model and src.txt: delete one of them"):
        vocabulary.load(tmp_path)


def test_a_flipped_bit_or_a_cut_is_refused(tmp_path):
    made = build(CONFIGS[4])
    vocabulary.save(made, tmp_path / "vocab")
    rng = random.Random(16)
    for path in sorted((tmp_path / "vocab").iterdir()):
        whole = path.read_bytes()
        for bit in rng.sample(range(8 * len(whole)), 40):
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
                    assert found == made  # a line end of the list of checksums
        path.write_bytes(whole)
    (tmp_path / "vocab" / "checksums.json").unlink()  # then a deliberate edit counts
    (tmp_path / "vocab" / "joint.txt").write_text("a 1\n", encoding="utf-8")
    assert vocabulary.load(tmp_path / "vocab").src.symbols == ("a",)
