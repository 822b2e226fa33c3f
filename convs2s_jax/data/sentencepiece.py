"""Subword units by SentencePiece: byte-pair encoding and unigram language models."""

import dataclasses
import functools
import hashlib
import io
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_bytes
from convs2s_jax.core.tokens import BOS, EOS, PAD, UNK
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.random_pieces import RandomPieces

# SentencePiece reserves these two characters. It reads the first as a space and skips training lines that contain the
# second. Both are replaced by code points that Unicode reserves for internal use.
_OWN = (("\u2581", "\ufdd0"), ("\u2585", "\ufdd1"))

FEW = 64
"""Up to this number, texts are encoded one by one. For a list, SentencePiece starts threads, which takes longer."""


@dataclasses.dataclass(frozen=True)
class SentencePiece:
    """A vocabulary of subword units.

    decode(encode([text])[0]) == text if no character is unknown and the normalisation is "identity", except that
    SentencePiece collapses runs of spaces (U+0020, no other space) into one and strips leading and trailing spaces.
    Unknown characters decode to "<unk>". The characters U+FDD0 and U+FDD1, which Unicode reserves for internal use,
    decode to U+2581 and U+2585.

    Attributes:
      model: content of SentencePiece's model file.
      suffix: file name suffix of this kind.
    """

    model: bytes

    suffix = ".model"

    @functools.cached_property
    def _processor(self) -> Any:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _random_pieces(self) -> RandomPieces:
        return RandomPieces(self._processor)

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return int(self._processor.get_piece_size())

    @property
    def special_ids(self) -> tuple[int, int, int, int]:
        """Ids of <s>, <pad>, </s> and <unk>, -1 for a missing one. `pieces.of_model` handles models with other ids."""
        model = self._processor
        return model.bos_id(), model.pad_id(), model.eos_id(), model.unk_id()

    @property
    def ordinary(self) -> tuple[str, ...]:
        """The units except control symbols and <unk>, in the order of their ids."""
        model, ids = self._processor, range(self.size)
        return tuple(self.token(i) for i in ids if not (model.is_control(i) or model.is_unknown(i)))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the model."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without EOS. An empty text has no tokens."""
        if len(texts) <= FEW:
            return [self._processor.encode(_escape(text)) for text in texts]
        return self._processor.encode([_escape(text) for text in texts])

    @property
    def divides_words(self) -> bool:
        """Whether the model divides words into pieces; see `data.segmentation`."""
        return self._random_pieces.divides_words

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Return the token ids of a random segmentation of each text; see `data.segmentation`."""
        rng, ids = random.Random(seed), self._random_pieces.ids  # not all ids: a text may contain a symbol's name
        drawn = (self._random_pieces.draw(_escape(text), rate=rate, rng=rng) for text in texts)
        return [[ids.get(piece, UNK) for piece in pieces] for pieces in drawn]

    def decode(self, ids: Sequence[int], unknown: str | None = None) -> str:
        """Return the text of token ids. BOS, PAD and EOS are skipped (they are SentencePiece control symbols).

        UNK becomes `unknown`. The default is the model's own text, "<unk>", or " \u2047 " in models not trained here.
        """
        if unknown is None or UNK not in ids:
            return _restore(self._processor.decode([int(i) for i in ids]))
        return _restore(self._processor.decode([unknown if i == UNK else self.token(i) for i in ids]))

    def surfaces(self, text: str) -> list[str]:
        """Return each unit of a text after the model's normalisation, with a space for U+2581."""
        pieces = self._processor.encode(_escape(text), out_type=str)
        return [_restore(piece.replace("\u2581", " ")) for piece in pieces]

    def token(self, i: int) -> str:
        """Return the unit of an id, with U+2581 for a space."""
        return str(self._processor.id_to_piece(int(i)))

    def save(self, path: Path) -> None:
        """Write SentencePiece's model file."""
        path.write_bytes(self.model)

    @classmethod
    def load(cls, path: Path) -> "SentencePiece":
        """Read a SentencePiece model file.

        Raises:
          UserError: the file is not a model.
        """
        vocabulary = cls(read_bytes(path, remedy="use the SentencePiece model of the vocabulary"))
        try:
            whole = len(vocabulary.ordinary) > 0
        except (RuntimeError, UnicodeDecodeError):  # the second from pieces, or from messages that quote the file
            whole = False
        if not whole:
            raise UserError(f"{path} is not a SentencePiece model: it is damaged or another kind of file")
        return vocabulary


def train(cfg: VocabularyConfig, lines: Iterable[str], *, size: int, field: str) -> SentencePiece:
    """Learn subword units. The same lines give the same model.

    A unigram vocabulary is smaller than `size` if the text has too few units.

    Args:
      size: number of entries, including the special ones.
      field: name of the configuration field of `size`, for messages.

    Raises:
      UserError: `size` is larger than the text's pairs allow, or smaller than its number of characters.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(_escape(line) for line in lines),
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
    return SentencePiece(model.getvalue())


def _escape(text: str) -> str:
    for char, stand_in in _OWN:
        text = text.replace(char, stand_in)
    return text


def _restore(text: str) -> str:
    for char, stand_in in _OWN:
        text = text.replace(stand_in, char)
    return text


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
