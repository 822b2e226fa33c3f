"""Pieces of a SentencePiece model that are numbered by a list, against fairseq's own ids."""

import io
import json

import numpy as np
import pytest
import sentencepiece

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data import vocabulary
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.pieces import ListedPieces, SentencePiece, listed, load_listed, load_model, train
from convs2s_jax.data.symbols import Vocabulary, load_words, word_list
from convs2s_jax.data.vocabulary import Vocabularies

LINES = ["a house", "a mouse in a house", "the mouse", "the house in the house"] * 9


def trained(**options):
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=made, minloglevel=3, **{"vocab_size": 30, **options}
    )
    return made.getvalue()


@pytest.fixture(scope="module")
def model():
    return trained(model_type="bpe")


@pytest.fixture
def pieces(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = [processor.id_to_piece(i) for i in reversed(range(3, 30))]
    return Vocabulary(ListedPieces(model), tuple(names), tuple(range(len(names))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_digits": True},
        {"normalization": "nmt_nfkc_cf"},
        {"character_coverage": 0.98},
        {"symbols": ("<de>",)},
    ],
    ids=str,
)
def test_merges_of_counted_words_are_those_of_the_lines(options):
    """Against SentencePiece on the lines themselves: spaces, digits, capitals, rare characters, a symbol in a word."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"abcdeäß012"], n)) for n in rng.integers(1, 9, 300)]
    lines = [" ".join(rng.choice([*words, "", "ＡＢ", "Ab c", "x<de>y", "q中"], 9)) for _ in range(2000)]
    cfg = VocabularyConfig(**options)
    named = {"normalization": "normalization_rule_name", "symbols": "user_defined_symbols"}
    more = {named.get(name, name): list(x) if name == "symbols" else x for name, x in options.items()}
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=made,
        minloglevel=3,
        model_type="bpe",
        vocab_size=400,
        bos_id=BOS,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        **{"character_coverage": 1.0, "normalization_rule_name": "identity", **more},
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    ours = train(cfg, lines, size=400, field="size").segmenter.processor
    assert [ours.id_to_piece(i) for i in range(400)] == [theirs.id_to_piece(i) for i in range(400)]


ODD = [
    " ",
    "  ",
    "\u0308",
    "\u00a8",
    "\u3000",
    "\u00a0",
    "\u200b",
    "\ufb01",
    "\ufdfa",
    "中",
    "7",
    "<b>",
    "<b",
    "\t",
    "\u2581",
]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("normalization", ["identity", "nfkc", "nmt_nfkc_cf"])
def test_ids_of_words_are_those_of_the_line(kind, normalization):
    """Against SentencePiece on whole lines, with characters that normalisation turns into spaces or joins."""
    cfg = VocabularyConfig(kind=kind, normalization=normalization, symbols=("<b>",))
    made, rng = train(cfg, iter([*LINES, "eﬁn 7 äö"]), size=32, field="size").segmenter, np.random.default_rng(0)
    texts = ["", *("".join(rng.choice([*ODD, *"house a"], rng.integers(1, 12))) for _ in range(3000))]
    lines = [text.replace("\u2581", "\ufdd0") for text in texts]
    assert made.encode(texts, {}) == [made.processor.encode(line) for line in lines]


def test_a_model_with_pieces_across_words_reads_whole_lines():
    made = SentencePiece(trained(model_type="bpe", split_by_whitespace=False, vocab_size=40))
    assert any("\u2581" in made.processor.id_to_piece(i)[1:] for i in range(40))
    assert made.encode(LINES[:4], {}) == [made.processor.encode(line) for line in LINES[:4]]


def test_pieces_outside_the_list_are_unknown(model, pieces):
    less, gone = Vocabulary(ListedPieces(model), pieces.symbols[:-1]), pieces.symbols[-1]
    for line in LINES[:4]:
        full, cut = pieces.encode([line])[0], less.encode([line])[0]
        assert cut == [UNK if pieces.token(i) == gone else i for i in full]
    assert "<unk>" in pieces.decode(pieces.encode(["xyz"])[0])
    assert pieces.decode([*pieces.encode(["the"])[0], UNK], unknown="?") == "the?"


def test_it_comes_back_from_its_file_and_a_damaged_one_is_named(pieces, model, tmp_path):
    words = word_list(pieces.symbols, pieces.counts)
    vocabulary.save(Vocabularies(pieces, words), tmp_path / "vocab")
    found = vocabulary.load(tmp_path / "vocab")
    assert (found.src, found.src.fingerprint) == (pieces, pieces.fingerprint)
    assert found.tgt.fingerprint != pieces.fingerprint
    path = tmp_path / "src.pieces.json"
    pieces.save(path)
    values = json.loads(path.read_text())
    for odd in ("{", "[]", json.dumps({**values, "model": "%"}), json.dumps({**values, "pieces": [1]})):
        path.write_text(odd)
        with pytest.raises(UserError, match=r"src.pieces.json is (damaged: it is not a list of pieces|not JSON)"):
            load_listed(path)
    path.write_text(json.dumps({**values, "model": "AAAA"}))
    with pytest.raises(UserError, match="contains no SentencePiece model"):
        load_listed(path)
    with pytest.raises(UserError, match="has no piece of its list; use the model of that list"):
        listed(model, word_list(("other",)), path)


STOCK = {
    "bpe": {"model_type": "bpe"},
    "unigram": {"vocab_size": 25, "hard_vocab_limit": False},
    "symbols": {
        "model_type": "bpe",
        "vocab_size": 34,
        "user_defined_symbols": ["<2de>", "<pad>"],
        "control_symbols": "<c>",
    },
    "bytes": {"model_type": "bpe", "vocab_size": 290, "byte_fallback": True},
}


@pytest.mark.parametrize("kind", STOCK)
def test_a_model_of_any_ids_gives_its_own_text(kind, tmp_path):
    path, content = tmp_path / "src.model", trained(**STOCK[kind])
    path.write_bytes(content)
    found, processor = load_model(path), sentencepiece.SentencePieceProcessor(model_proto=content)
    texts = [*LINES[:4], "", *(["a \u732b mouse \u00e9", "\U0001f600"] if kind == "bytes" else [])]
    texts += ["<2de> the mouse"] if kind == "symbols" else []
    for text, ids in zip(texts, found.encode(texts), strict=True):
        own = processor.encode(text)
        assert [found.token(i) for i in ids] == [processor.id_to_piece(i) for i in own]
        assert not {BOS, PAD, EOS, UNK} & set(ids)
        assert found.decode([*ids, EOS, PAD]) == processor.decode(own).rstrip() == text
    assert len(set(found.symbols)) == len(found.symbols)
    assert not {*SPECIAL, "<c>"} & set(found.symbols)
    assert kind != "symbols" or found.encode(["<pad> the"])[0].count(UNK) == 1


def test_a_model_of_the_librarys_ids_is_itself(tmp_path):
    content = trained(model_type="bpe", bos_id=BOS, pad_id=PAD, eos_id=EOS, unk_id=UNK)
    (tmp_path / "src.model").write_bytes(content)
    assert load_model(tmp_path / "src.model").segmenter == SentencePiece(content)


def test_ids_are_those_of_fairseq(golden):
    folder = golden / "beam_model"
    path = folder / "spm.de.model"
    pieces = listed(path.read_bytes(), load_words(folder / "dict.de.txt"), path)
    sentences = json.loads((golden / "beam_b5_lp1.0.json").read_text())["sentences"]
    rows = np.load(golden / "beam_b5_lp1.0.npz")["in/src_tokens"].tolist()
    texts = [s["src_text"].replace(" ", "").replace("\u2581", " ").strip() for s in sentences]
    assert pieces.encode(texts) == [[i for i in row if i not in (PAD, EOS)] for row in rows]
