"""Vocabularies: fairseq's ids, text that comes back as it was, and what happens where a text does not allow it."""

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data import sentencepiece, vocabulary
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.parallel_text import ParallelText
from convs2s_jax.data.text_files import read_lines
from tests.data.vocabularies import CONFIGS, ODD, SRC, TEXT, TGT, build


@pytest.fixture(params=CONFIGS, ids=lambda cfg: f"{cfg.kind}{'-joint' * cfg.joint}", scope="module")
def cfg(request):
    return request.param


@pytest.fixture(scope="module")
def built(cfg):
    return build(cfg)


# --- the contract of all kinds


def test_special_ids_are_those_of_fairseq(built):
    for side in (built.src, built.tgt):
        assert tuple(side.token(i) for i in (BOS, PAD, EOS, UNK)) == SPECIAL


def test_size_is_what_was_asked_for(built, cfg):
    assert (built.src.size, built.tgt.size) == (cfg.src_size, cfg.src_size if cfg.joint else cfg.tgt_size)
    assert len({built.src.token(i) for i in range(built.src.size)}) == built.src.size


def test_joint_sides_are_one(built, cfg):
    assert (built.src is built.tgt) == built.joint == cfg.joint


def test_special_ids_are_not_in_encoded_text(built):
    ids = built.src.encode([f"{text} <s> </s> <pad>" for text in SRC])
    assert not {BOS, PAD, EOS} & {i for sentence in ids for i in sentence}


def test_an_empty_text_has_no_tokens(built):
    assert built.src.encode(["", "Hund", ""])[::2] == [[], []]
    assert built.src.decode([]) == ""


def test_decoding_skips_special_symbols_and_takes_numpy(built):
    [ids] = built.tgt.encode(["dog runs"])
    text = built.tgt.decode(ids)
    assert built.tgt.decode([BOS, ids[0], PAD, *ids[1:], EOS, PAD]) == text
    assert built.tgt.decode(np.array([*ids, EOS], np.uint16)) == text


def test_unknown_is_written_out(built):
    [ids] = built.src.encode(["Hund 猫 Hund"])
    assert UNK in ids
    assert "<unk>" in built.src.decode(ids)
    assert built.src.decode([UNK]).strip() == "<unk>"


def test_same_text_gives_the_same_vocabulary(built, cfg):
    again = build(cfg)
    assert (again.src.fingerprint, again.tgt.fingerprint) == (built.src.fingerprint, built.tgt.fingerprint)
    assert built.joint or built.src.fingerprint != built.tgt.fingerprint


def test_saved_vocabularies_come_back(built, tmp_path):
    vocabulary.save(built, tmp_path / "runs" / "vocab")
    loaded = vocabulary.load(tmp_path / "runs" / "vocab")
    assert loaded == built
    assert loaded.joint == built.joint
    assert (loaded.src.fingerprint, loaded.tgt.fingerprint) == (built.src.fingerprint, built.tgt.fingerprint)
    assert loaded.tgt.encode(TGT) == built.tgt.encode(TGT)


# --- subwords


@pytest.mark.parametrize("cfg", CONFIGS[:3], ids=lambda cfg: cfg.kind, indirect=True)
def test_subwords_give_the_text_back(built):
    texts = [*SRC, ODD, "a", "\u202f", "\ta\t", "\u3000a\u3000", "\u2581a\u2581", "läuft!"[:-1]]
    for text, ids in zip(texts, built.src.encode(texts), strict=True):
        assert UNK not in ids
        assert built.src.decode(ids) == text


@pytest.mark.parametrize("cfg", CONFIGS[:1], ids=lambda cfg: cfg.kind, indirect=True)
def test_runs_and_edges_of_plain_spaces_are_normalised(built):
    [ids] = built.src.encode(["  der   Hund\u00a0\u00a0 "])
    assert built.src.decode(ids) == "der Hund\u00a0\u00a0"


def test_normalisation_can_be_asked_for():
    both = build(VocabularyConfig(kind="bpe", src_size=140, joint=True, normalization="nfkc"))
    [ids] = both.src.encode(["\u202fﬁ"])
    assert both.src.decode(ids) == "fi"


@pytest.mark.parametrize(("split_digits", "pieces"), [(True, 5), (False, 2)])
def test_digits_can_be_split(split_digits, pieces):
    lines = [f"{i} year 2024" for i in range(50)]
    cfg = VocabularyConfig(src_size=22, joint=True, split_digits=split_digits)
    [ids] = build(cfg, ParallelText(lines, lines, "train")).src.encode(["2024"])
    assert len(ids) == pieces  # with four digits, the mark of a word's start is the fifth


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
        pieces = [made.token(i) for i in found]
        assert [piece for piece in pieces if piece in symbols] == ["<2fr>", "<2de>", "a,b"]


def test_long_lines_are_learned_from():
    lines = ["a " * 5000 + "ß"]
    assert (
        UNK
        not in build(VocabularyConfig(src_size=7, joint=True), ParallelText(lines, lines, "train")).src.encode("ß")[0]
    )


@pytest.mark.parametrize("size", [1000, 5000])
def test_too_many_pieces_name_the_largest_size(size):
    with pytest.raises(
        UserError, match=rf"data.vocabulary.tgt_size is {size}: .* has at most \d+ units; use \d+ or less"
    ) as e:
        build(VocabularyConfig(src_size=100, tgt_size=size))
    largest = int(str(e.value).split()[-3])
    assert build(VocabularyConfig(src_size=100, tgt_size=largest)).tgt.size == largest
    with pytest.raises(UserError, match=f"use {largest} or less"):
        build(VocabularyConfig(src_size=100, tgt_size=largest + 1))


def test_sizes_that_are_wrong_on_both_sides_are_told_at_once():
    both = " and ".join(rf"data\.vocabulary\.{side}_size is 5000: .* use \d+ or less,?" for side in ("src", "tgt"))
    with pytest.raises(UserError, match=f"^{both}$"):
        build(VocabularyConfig(src_size=5000, tgt_size=5000))


def test_too_few_pieces_name_the_smallest_size():
    with pytest.raises(
        UserError, match=r"data.vocabulary.src_size is 9: .* need \d+ entries; use \d+ or more, or lower"
    ) as e:
        build(VocabularyConfig(src_size=9))
    smallest = int(str(e.value).split("use ")[1].split()[0])
    assert build(VocabularyConfig(src_size=smallest, tgt_size=100)).src.size == smallest


def test_unigram_takes_what_the_text_allows():
    assert 50 < build(VocabularyConfig(kind="unigram", src_size=66, tgt_size=5000)).tgt.size < 5000


@pytest.mark.parametrize("lines", [[""], ["  ", ""]])
def test_text_without_characters_is_refused(lines):
    with pytest.raises(UserError, match=r"data.vocabulary.src_size is 100: .* only empty lines"):
        build(VocabularyConfig(src_size=100), ParallelText(lines, lines, "train"))


def test_other_failures_of_sentencepiece_are_passed_on():
    message = "src_size is 100: SentencePiece cannot learn it from the training text: something new"
    assert message in sentencepiece._explain("something new", 100, "src_size")


def test_nothing_is_printed(capfd):
    vocabulary.build(CONFIGS[0], TEXT, 1)
    vocabulary.build(CONFIGS[2], TEXT, 1)
    assert capfd.readouterr() == ("", "")


# --- words


def test_words_are_sorted_by_count_and_then_by_name():
    lines = ["b a c b", "a </s> <unk> d"]
    words_ = build(VocabularyConfig(kind="words", min_count=1), ParallelText(lines, lines, "train")).src
    assert (words_.words, words_.counts) == (("a", "b", "c", "d"), (2, 2, 1, 1))
    assert words_.encode(["a b  d\u00a0x </s> <unk> "]) == [[4, 5, 7, UNK, UNK, UNK]]
    assert words_.decode([4, UNK, 5]) == "a <unk> b"


def test_words_are_cut_by_count_and_size():
    lines = ["a a a b b c"]
    text = ParallelText(lines, lines, "train")
    assert build(VocabularyConfig(kind="words", min_count=2), text).src.words == ("a", "b")
    assert build(VocabularyConfig(kind="words", min_count=1, src_size=5), text).src.words == ("a",)


def test_no_frequent_word_is_refused():
    lines = ["a b", "a"]
    with pytest.raises(UserError, match=r"src_size is 10000: no word .*min_count = 3 times \(.* 2 times\)"):
        build(VocabularyConfig(kind="words", min_count=3), ParallelText(lines, lines, "train"))
    with pytest.raises(UserError, match=r"src_size is 10000: this side of the training text has no words; check its"):
        build(VocabularyConfig(kind="words", min_count=1), ParallelText(["", " "], lines, "train"))


def test_word_list_is_a_dictionary_of_fairseq(tmp_path):
    content = "the 12\nan\u0301 3\nmadeupword0000 0\nthe 2 #fairseq:overwrite \n<unk> 1 #fairseq:overwrite\n"
    (tmp_path / "joint.txt").write_text(content, encoding="utf-8")
    loaded = vocabulary.load(tmp_path).src
    assert [loaded.token(i) for i in range(4, loaded.size)] == ["the", "an\u0301", "madeupword0000", "the", "<unk>"]
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
    assert len(first.words) == 20
    joint = build(VocabularyConfig(kind="words", min_count=1, sample=20, joint=True), ParallelText(lines, TGT, "train"))
    assert {*first.words} < {*joint.src.words}


def test_real_text_comes_back(corpora):
    lines = read_lines(corpora / "multi30k_raw" / "valid.de.gz")
    both = build(VocabularyConfig(src_size=2000, joint=True), ParallelText(lines, lines, "train"))
    for line, ids in zip(lines, both.src.encode(lines), strict=True):
        assert both.src.decode(ids) == " ".join(line.strip(" ").split(" ")).replace("  ", " ")
