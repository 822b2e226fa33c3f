"""Pieces of a SentencePiece model numbered by a list, against fairseq's own ids."""

import io
import json

import numpy as np
import pytest
import sentencepiece

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data import vocabulary
from convs2s_jax.data.pieces import ListedPieces, of_model
from convs2s_jax.data.sentencepiece import SentencePiece
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.data.words import WordList

LINES = ["a house", "a mouse in a house", "the mouse", "the house in the house"] * 9


@pytest.fixture(scope="module")
def model():
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=made, model_type="bpe", vocab_size=30, minloglevel=3
    )
    return made.getvalue()


@pytest.fixture
def pieces(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    listed = [processor.id_to_piece(i) for i in reversed(range(3, 30))]
    return ListedPieces(model, WordList(tuple(listed), tuple(range(len(listed)))))


def test_ids_are_lines_of_the_list(pieces):
    ids = pieces.encode(["the house", ""])
    assert ids[1] == []
    assert "".join(pieces.words.words[i - 4] for i in ids[0]) == "\u2581the\u2581house"
    assert pieces.decode([*ids[0], EOS, PAD]) == "the house"
    assert [pieces.decode(i) for i in pieces.encode(LINES[:4])] == LINES[:4]


def test_pieces_outside_the_list_are_unknown(model, pieces):
    less = ListedPieces(model, WordList(pieces.words.words[:-1], pieces.words.counts[:-1]))
    gone = pieces.words.words[-1]
    for line in LINES[:4]:
        full, cut = pieces.encode([line])[0], less.encode([line])[0]
        assert cut == [UNK if pieces.token(i) == gone else i for i in full]
    assert UNK in pieces.encode(["xyz"])[0]
    assert "<unk>" in pieces.decode(pieces.encode(["xyz"])[0])
    assert pieces.decode([*pieces.encode(["the"])[0], UNK], unknown="?") == "the?"


def test_surfaces_are_those_of_the_tokens(pieces):
    for line in ["the house", "a xyz house", ""]:
        found, [ids] = pieces.surfaces(line), pieces.encode([line])
        assert "".join(found).strip() == line
        assert len(found) == len(ids)
        known = [(surface, i) for surface, i in zip(found, ids, strict=True) if i != UNK]
        assert all(surface == pieces.token(i).replace("\u2581", " ") for surface, i in known)


def test_saved_and_loaded_is_the_same(pieces, tmp_path):
    vocabulary.save(Vocabularies(pieces, pieces.words), tmp_path / "vocab")
    found = vocabulary.load(tmp_path / "vocab")
    assert found.src == pieces
    assert found.src.fingerprint == pieces.fingerprint
    assert found.tgt.fingerprint != pieces.fingerprint


def test_a_damaged_file_is_named(pieces, model, tmp_path):
    path = tmp_path / "src.pieces.json"
    pieces.save(path)
    values = json.loads(path.read_text())
    for odd in ("{", "[]", json.dumps({**values, "model": "%"}), json.dumps({**values, "pieces": [1]})):
        path.write_text(odd)
        with pytest.raises(UserError, match=r"src.pieces.json is (damaged: it is not a list of pieces|not JSON)"):
            ListedPieces.load(path)
    path.write_text(json.dumps({**values, "model": "AAAA"}))
    with pytest.raises(UserError, match="contains no SentencePiece model"):
        ListedPieces.load(path)
    ListedPieces(model, WordList(("other",), (1,))).save(path)
    with pytest.raises(UserError, match="has no piece of its list; use the model of that list"):
        ListedPieces.load(path)


STOCK = {
    "bpe": {"model_type": "bpe", "vocab_size": 30},
    "unigram": {"vocab_size": 25, "hard_vocab_limit": False},
    "pad at the end": {"model_type": "bpe", "vocab_size": 30, "pad_id": 29},
    "symbols": {
        "model_type": "bpe",
        "vocab_size": 34,
        "user_defined_symbols": ["<2de>", "<pad>"],
        "control_symbols": "<c>",
    },
    "suffix": {"model_type": "bpe", "vocab_size": 30, "treat_whitespace_as_suffix": True},
    "bytes": {"model_type": "bpe", "vocab_size": 290, "byte_fallback": True},
}


@pytest.mark.parametrize("kind", STOCK)
def test_a_model_of_any_ids_gives_its_own_text(kind, tmp_path):
    spm, made = sentencepiece, io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=made, minloglevel=3, **STOCK[kind])
    path = tmp_path / "src.model"
    path.write_bytes(made.getvalue())
    found, processor = of_model(path), spm.SentencePieceProcessor(model_proto=made.getvalue())
    texts = [*LINES[:4], "", *(["a \u732b mouse \u00e9", "\U0001f600"] if kind == "bytes" else [])]
    texts += ["<2de> the mouse"] if kind == "symbols" else []
    for text, ids in zip(texts, found.encode(texts), strict=True):
        own = processor.encode(text)
        assert [found.token(i) for i in ids] == [processor.id_to_piece(i) for i in own]
        assert not {BOS, PAD, EOS, UNK} & set(ids)
        assert found.decode([*ids, EOS, PAD]) == processor.decode(own).rstrip() == text
    assert tuple(found.token(i) for i in range(4)) == SPECIAL
    rest = [found.token(i) for i in range(4, found.size)]
    assert len(set(rest)) == len(rest)
    assert not {*SPECIAL, "<c>"} & set(rest)
    assert kind != "symbols" or found.encode(["<pad> the"])[0].count(UNK) == 1


def test_a_model_of_the_librarys_ids_is_itself(tmp_path):
    ids = {"bos_id": BOS, "pad_id": PAD, "eos_id": EOS, "unk_id": UNK}
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=made, minloglevel=3, vocab_size=30, model_type="bpe", **ids
    )
    (tmp_path / "src.model").write_bytes(made.getvalue())
    assert of_model(tmp_path / "src.model") == SentencePiece(made.getvalue())


def test_ids_are_those_of_fairseq(golden):
    folder = golden / "beam_model"
    words = WordList.load(folder / "dict.de.txt")
    pieces = ListedPieces((folder / "spm.de.model").read_bytes(), words)
    sentences = json.loads((golden / "beam_b5_lp1.0.json").read_text())["sentences"]
    rows = np.load(golden / "beam_b5_lp1.0.npz")["in/src_tokens"].tolist()
    texts = [s["src_text"].replace(" ", "").replace("\u2581", " ").strip() for s in sentences]
    assert pieces.encode(texts) == [[i for i in row if i not in (PAD, EOS)] for row in rows]
