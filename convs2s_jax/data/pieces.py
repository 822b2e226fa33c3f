"""Subword units by SentencePiece: byte-pair encoding and unigram language models.

A model either has its own ids, as those that are learned here, or a separate list assigns them, as in fairseq.
"""

import base64
import collections
import dataclasses
import functools
import io
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_bytes
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data.bpe_codes import of_words
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.segmentation import RandomPieces
from convs2s_jax.data.symbols import Vocabulary, Words, json_content, load_json

_SPACE = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
FEW = 64
"""Up to this number, texts are encoded one by one. For a list, SentencePiece starts threads, which takes longer."""


@dataclasses.dataclass(frozen=True)
class ListedPieces(Words):
    """The pieces of a SentencePiece model; a list of pieces, as fairseq's dict.txt, assigns the ids.

    Joining replaces each U+2581 with a space (fairseq's --remove-bpe=sentencepiece), so it returns the normalised text.
    Byte pieces (SentencePiece's byte_fallback) become the characters that they encode.

    Attributes:
      model: content of SentencePiece's model file.
    """

    model: bytes

    suffix = ".pieces.json"
    divides_words = True

    @functools.cached_property
    def processor(self) -> Any:
        """SentencePiece's processor of the model."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _random_pieces(self) -> RandomPieces:
        return RandomPieces(self.processor)

    def _read(self, text: str) -> str:
        """Return the text that the model reads."""
        return text

    def split(self, text: str) -> Sequence[str]:
        """Return the pieces of a text, with U+2581 for a space."""
        pieces: list[str] = self.processor.encode(self._read(text), out_type=str)
        return pieces

    def draw(self, text: str, *, rate: float, rng: random.Random) -> Sequence[str]:
        """Return a random segmentation of a text; see `data.segmentation`."""
        return self._random_pieces.draw(self._read(text), rate=rate, rng=rng)

    def _plain(self, symbols: Sequence[str]) -> str:
        """Return pieces joined, with spaces for U+2581 and characters for bytes."""
        runs = itertools.groupby(symbols, lambda piece: _BYTE.fullmatch(piece) is not None)
        parts = (self.processor.decode([*run]) if encoded else "".join(run) for encoded, run in runs)
        return "".join(parts).replace(_SPACE, " ")

    def join(self, symbols: Sequence[str]) -> str:
        """Return the text of pieces."""
        return self._plain(symbols).strip()

    def surfaces(self, text: str) -> list[str]:
        """Return each piece of a text, with a space for U+2581."""
        return [piece.replace(_SPACE, " ") for piece in self.split(text)]

    def is_piece(self, surface: str) -> bool:
        """Whether the model has this piece, listed or not. Otherwise it is a run of characters unknown to the model."""
        return bool(self.processor.piece_to_id(surface.replace(" ", _SPACE)) != self.processor.unk_id())

    def content(self, symbols: Sequence[str], counts: Sequence[int]) -> bytes:
        """Return model and list as JSON."""
        return json_content(symbols, counts, model=base64.b64encode(self.model).decode())


@dataclasses.dataclass(frozen=True)
class SentencePiece(ListedPieces):
    """The pieces of a SentencePiece model that assigns the ids itself.

    A text comes back as it was if no character is unknown and the normalisation is "identity", except that
    SentencePiece collapses runs of spaces (U+0020, no other space) into one and strips leading and trailing spaces. The
    characters U+FDD0 and U+FDD1, which Unicode reserves for internal use, become U+2581 and U+2585.
    """

    suffix = ".model"

    def _read(self, text: str) -> str:
        return _escape(text)

    @functools.cached_property
    def _ids_of_word(self) -> Callable[[str], Sequence[int]] | None:
        """Word -> its ids; None if the ids of a text are not those of its words, one after the other."""
        own = self.processor
        across = any(_SPACE in own.id_to_piece(i)[1:] for i in range(own.get_piece_size()))
        spaced = own.normalize("  a  b ") == f"{_SPACE}a{_SPACE}b" and own.piece_to_id(_SPACE) != own.unk_id()
        return of_words(own.encode) if spaced and not across else None

    def encode(self, texts: Sequence[str], ids: Mapping[str, int]) -> list[list[int]]:  # noqa: ARG002 - faster without
        """Return the ids of each text. Most words of a long text occur before, so that their ids are known."""
        lines = [_escape(text) for text in texts]
        if (of_word := self._ids_of_word) is not None:
            return [[*itertools.chain.from_iterable(map(of_word, line.split(" ")))] for line in lines]
        return [*map(self.processor.encode, lines)] if len(texts) <= FEW else list(self.processor.encode(lines))

    def join(self, symbols: Sequence[str]) -> str:
        """Return the text of pieces, without spaces at its beginning, as SentencePiece does."""
        return _restore(self._plain(symbols).lstrip(" "))

    def surfaces(self, text: str) -> list[str]:
        """Return each piece of a text after the model's normalisation, with a space for U+2581."""
        return [_restore(surface) for surface in super().surfaces(text)]

    def content(self, symbols: Sequence[str], counts: Sequence[int]) -> bytes:  # noqa: ARG002 - the model has them
        """Return SentencePiece's model file."""
        return self.model


def load_model(path: Path) -> Vocabulary:
    """Read a SentencePiece model file.

    If its special symbols have other ids than here, its other pieces are listed after our special symbols, in order.
    Its own control symbols are left out, because they do not occur in text.

    Raises:
      UserError: the file is not a model.
    """
    model = read_bytes(path, remedy="use the SentencePiece model of the vocabulary")
    try:
        return of_model(model)
    except (RuntimeError, UnicodeDecodeError, ValueError) as error:  # the second from pieces, or messages that quote it
        raise UserError(f"{path} is not a SentencePiece model: it is damaged or another kind of file") from error


def of_model(model: bytes) -> Vocabulary:
    """Return the vocabulary of a model, as `load_model` does. RuntimeError or ValueError if it is none."""
    segmenter = SentencePiece(model)
    own = segmenter.processor
    pieces = [str(own.id_to_piece(i)) for i in range(own.get_piece_size())]
    ordinary = [piece for i, piece in enumerate(pieces) if not (own.is_control(i) or own.is_unknown(i))]
    if not ordinary:
        raise ValueError("the model has no pieces")
    if (own.bos_id(), own.pad_id(), own.eos_id(), own.unk_id()) == (BOS, PAD, EOS, UNK):
        return Vocabulary(segmenter, tuple(pieces[len(SPECIAL) :]))
    words = tuple(piece for piece in ordinary if piece not in SPECIAL)
    return Vocabulary(ListedPieces(model), words, (1,) * len(words))


def listed(model: bytes, words: Vocabulary, where: Path) -> Vocabulary:
    """Combine a SentencePiece model with a list of pieces.

    Args:
      model: content of its file.
      words: the list.
      where: file, for messages.

    Raises:
      UserError: it is no model, or none of its pieces is in the list.
    """
    segmenter = ListedPieces(model)
    try:
        made = {segmenter.processor.id_to_piece(i) for i in range(segmenter.processor.get_piece_size())}
    except (RuntimeError, UnicodeDecodeError):
        made = set()
    if not made:
        raise UserError(f"{where} contains no SentencePiece model: it is damaged or another kind of file")
    if not made & set(words.symbols):
        raise UserError(f"{where}: the SentencePiece model has no piece of its list; use the model of that list")
    return dataclasses.replace(words, segmenter=segmenter)


def load_listed(path: Path) -> Vocabulary:
    """Read the file of a list of pieces with its model.

    Raises:
      UserError: the file is damaged.
    """

    def model_of(values: Any) -> ListedPieces:
        return ListedPieces(base64.b64decode(values["model"], validate=True))

    made = load_json(path, model_of)
    assert isinstance(made.segmenter, ListedPieces)
    return listed(made.segmenter.model, made, path)


def train(cfg: VocabularyConfig, lines: Iterable[str], *, size: int, field: str) -> Vocabulary:
    """Learn subword units. The same lines give the same model.

    A unigram vocabulary is smaller than `size` if the text has too few units.

    Args:
      cfg: kind, coverage, normalisation and symbols.
      lines: the text.
      size: number of entries, including the special ones.
      field: name of the configuration field of `size`, for messages.

    Raises:
      UserError: `size` is larger than the text's pairs allow, or smaller than its number of characters.
    """
    model, sentences, counts = io.BytesIO(), map(_escape, lines), cfg.kind == "bpe"
    if counts:  # the merges are those of the lines, in a fraction of their memory
        words = collections.Counter(word for line in sentences for word in line.split(" ") if word)
        sentences = map("\t".join, zip(words, map(str, words.values()), strict=True))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            input_format="tsv" if counts else "text",
            model_writer=model,
            model_type=cfg.kind,
            vocab_size=size,
            hard_vocab_limit=cfg.kind != "unigram",
            split_digits=cfg.split_digits,
            character_coverage=cfg.character_coverage,
            normalization_rule_name=cfg.normalization,
            bos_id=BOS,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            unk_surface="<unk>",
            user_defined_symbols=[_escape(symbol) for symbol in cfg.symbols],
            max_sentence_length=1 << 24,  # bytes; longer lines would be skipped silently
            num_threads=4,  # fixed: the floating-point sums of a unigram model depend on it
            minloglevel=3,
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), size, field)) from error
    return of_model(model.getvalue())


def _escape(text: str) -> str:
    """Replace two characters that SentencePiece reserves by code points that Unicode reserves for internal use.

    It reads the first as a space and skips training lines that contain the second.
    """
    return text.replace("\u2581", "\ufdd0").replace("\u2585", "\ufdd1")


def _restore(text: str) -> str:
    return text.replace("\ufdd0", "\u2581").replace("\ufdd1", "\u2585")


def _explain(message: str, size: int, field: str) -> str:
    """Translate SentencePiece's error message into one about the configuration field."""
    if found := re.search(r"Vocabulary size too high .* <= (\d+)", message):
        return f"{field} is {size}: the training text has at most {found[1]} units; use {found[1]} or less"
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"{field} is {size}: the special symbols and the characters of the training text need {found[1]} entries; "
            f"use {found[1]} or more, or lower data.vocabulary.character_coverage"
        )
    if "all_chars_count" in message or "sentences_.empty()" in message:
        return f"{field} is {size}: the training text has only empty lines; use a text with words to learn from"
    return f"{field} is {size}: SentencePiece cannot learn it from the training text: {message}"
