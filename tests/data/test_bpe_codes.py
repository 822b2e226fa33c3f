"""Pieces of words by codes of subword-nmt, against those that the program itself made."""

import dataclasses
import itertools
import json
import random
from pathlib import Path

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import BOS, EOS, PAD, UNK
from convs2s_jax.data import vocabulary
from convs2s_jax.data.bpe_codes import CodedWords, load_codes, merged
from convs2s_jax.data.symbols import word_list
from convs2s_jax.data.vocabulary import Vocabularies

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "subword_nmt.json").read_text(encoding="utf-8"))


def codes_file(folder, version="0.2", name="codes"):
    (folder / name).write_text("".join(f"{line}\n" for line in GOLDEN["codes"][version]), encoding="utf-8")
    return folder / name


def list_of(codes, *words):
    pieces = dict.fromkeys(piece for word in words for piece in codes.cut(word))
    return word_list(tuple(pieces), tuple(range(len(pieces), 0, -1)))


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    return load_codes(codes_file(tmp_path_factory.mktemp("codes")))


@pytest.fixture(scope="module")
def coded(codes):
    words = list_of(codes, "Norwegen", "und", "Antarktis", "ein", "eins", "e")
    return dataclasses.replace(words, segmenter=codes)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_pieces_are_those_of_subword_nmt(version, tmp_path):
    found = load_codes(codes_file(tmp_path, version))
    assert found.version == version
    assert [" ".join(found.cut(word)) for word in GOLDEN["words"]] == GOLDEN["pieces"][version]
    assert found.codes() == codes_file(tmp_path, version).read_bytes()


def by_steps(symbols, ranks):
    """All pairs of the lowest rank are merged from left to right, again and again."""
    while found := [ranks[pair] for pair in itertools.pairwise(symbols) if pair in ranks]:
        rest, symbols = symbols, []
        while rest:
            size = 2 if ranks.get(tuple(rest[:2])) == min(found) else 1
            symbols, rest = [*symbols, "".join(rest[:size])], rest[size:]
    return symbols


def test_merging_by_rank_is_merging_step_by_step():
    rng, parts = random.Random(0), ["a", "b", "aa", "ab", "ba", "aba", "aab", "abb"]
    pairs = list(itertools.product(parts, parts))
    for number in range(300):
        drawn = rng.sample(pairs, rng.randrange(1, 60))
        of_text = {left + right: rng.randrange(4) for left, right in drawn}  # as in SentencePiece's models
        ranks = {pair: i if number % 2 else of_text[pair[0] + pair[1]] for i, pair in enumerate(drawn)}
        word = rng.choices("ab", k=rng.randrange(30))
        assert merged(word, lambda *pair: ranks.get(pair)) == by_steps(word, ranks)  # noqa: B023


def test_a_long_word_takes_few_steps_and_is_not_kept(tmp_path):
    """A word of 20,000 letters in which 676 pairs are merged one after the other."""
    asked, letters, rng = [], "abcdefghijklmnopqrstuvwxyz", random.Random(0)
    ranks = {pair: i for i, pair in enumerate(itertools.product(letters, letters))}
    word = rng.choices(letters, k=20_000)
    merged(word, lambda *pair: asked.append(0) or ranks.get(pair))
    assert len(asked) < 4 * len(word)
    codes = CodedWords(tuple(ranks))
    assert codes.cut("ab" * 16) is codes.cut("ab" * 16)
    assert codes.cut("ab" * 17) is not codes.cut("ab" * 17)
    (tmp_path / "codes").write_text("#version: 0.2" + ".0" * 300_000 + "x")
    with pytest.raises(UserError, match=r"have version '0\.2\.0"):
        load_codes(tmp_path / "codes")


def test_text_comes_back_without_marks(coded):
    lines = ["Norwegen und Antarktis", " eins  und\tein e", ""]
    ids = coded.encode(lines)
    assert len(ids[0]) > 3
    assert ids[2] == []
    assert not {BOS, PAD, EOS, UNK} & {i for line in ids for i in line}
    assert [coded.decode([BOS, *line, EOS, PAD]) for line in ids] == [" ".join(line.split()) for line in lines]
    assert [coded.token(i) for i in ids[0]] == coded.segmenter.split(lines[0])
    assert coded.decode([*ids[0], next(i for i in range(4, coded.size) if coded.token(i).endswith("@@"))]).startswith(
        "Norwegen und Antarktis "
    )  # a mark at the end of a line is dropped too


def test_words_end_at_listed_white_space_where_subword_nmt_ends_them(codes, coded):
    """At U+0020 alone; what a list does not contain is white space or invisible. The pieces are subword-nmt's."""
    line = "ein\xa0und \u2009Norwegen\u200b eins\xadein \xa0"
    cut = "e@@ in@@ \xa0@@ und \u2009@@ Nor@@ we@@ gen@@ \u200b e@@ in@@ s@@ \xad@@ e@@ in \xa0"
    listed = dataclasses.replace(word_list(tuple(dict.fromkeys(cut.split(" ")))), segmenter=codes)
    ids, none = listed.encode([line, "\xa0 \u200b"])
    assert (" ".join(map(listed.token, ids)), none) == (cut, [])
    assert coded.encode([line]) == coded.encode(["ein und Norwegen einsein"])


def test_literal_marks_come_back():
    codes, text = CodedWords((("@", "@</w>"), ("a", "@@</w>"), ("@", "@@</w>"))), "a@@ @@ b@@ @@@ @@@@ @ x"
    found = dataclasses.replace(list_of(codes, *text.split()), segmenter=codes)
    assert UNK not in (ids := found.encode([text])[0])
    assert found.decode(ids) == text


def test_unknown_pieces_are_a_part_of_their_word(coded):
    [ids] = coded.encode(["und \u732bein"])
    assert ids.count(UNK) == 1
    assert coded.decode(ids) == "und <unk> ein"
    assert coded.decode(ids, unknown="?") == "und ? ein"
    assert coded.encode(["<s> <unk>"])[0].count(UNK) > 0


def test_it_comes_back_from_its_file_or_from_a_list_with_codes_beside_it(coded, tmp_path):
    words = word_list(coded.symbols, coded.counts)
    vocabulary.save(Vocabularies(coded, words), tmp_path / "vocab")
    found = vocabulary.load(tmp_path / "vocab")
    assert (found.src, found.src.fingerprint) == (coded, coded.fingerprint)
    other = dataclasses.replace(coded, segmenter=CodedWords(coded.segmenter.merges, "0.1"))
    assert len({coded.fingerprint, found.tgt.fingerprint, other.fingerprint}) == 3
    words.save(tmp_path / "joint.txt")
    assert vocabulary.load(tmp_path).src == words
    codes_file(tmp_path, name="joint.codes")
    assert vocabulary.load(tmp_path).src == coded


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"codes, line 1: '' is not a pair of symbols, as in 'th e</w>'; use the codes that subword-nmt"),
        ("#version: 0.3\na b\n", r"codes: its codes have version '0.3'; use codes of version 0.1 or 0.2"),
        (
            "x y\nz w</w>\n",
            r"codes: the codes produce 0 of the \d+ pieces of several letters in the word list; use the codes",
        ),
    ],
)
def test_other_files_are_refused(coded, tmp_path, content, message):
    for side in ("src", "tgt"):
        word_list(coded.symbols, coded.counts).save(tmp_path / f"{side}.txt")
        (tmp_path / f"{side}.codes").write_text(content)
    with pytest.raises(UserError, match=message):
        vocabulary.load(tmp_path)
