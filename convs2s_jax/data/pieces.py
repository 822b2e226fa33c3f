"""Subword units as fairseq uses SentencePiece: a model splits the text, and a separate list assigns the ids.

The id of a piece comes from its line in the list (dict.txt), not from the model. This also supports models whose
special symbols have other ids than here.
"""

import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_json
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data.random_pieces import RandomPieces
from convs2s_jax.data.sentencepiece import SentencePiece
from convs2s_jax.data.words import WordList

_SPACE = "\u2581"


@dataclasses.dataclass(frozen=True)
class ListedPieces:
    """A vocabulary of listed pieces.

    A piece that is not in the list is unknown. Decoding joins the pieces and replaces each U+2581 with a space
    (fairseq's --remove-bpe=sentencepiece), so it returns the normalised text. Byte pieces (SentencePiece's
    byte_fallback) become the characters that they encode.

    Attributes:
      model: content of SentencePiece's model file, which splits text into pieces.
      words: the list of pieces, which gives their ids.
      suffix: file name suffix of this kind.
    """

    model: bytes
    words: WordList

    suffix = ".pieces.json"

    @functools.cached_property
    def _processor(self) -> Any:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _random_pieces(self) -> RandomPieces:
        return RandomPieces(self._processor)

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return self.words.size

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the saved model and list."""
        return hashlib.sha256(self._content()).hexdigest()

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {self.words.token(i): i for i in range(UNK + 1, self.size)}

    @functools.cached_property
    def _bytes(self) -> frozenset[str]:
        model = self._processor
        return frozenset(model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_byte(i))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without EOS. An empty text has no tokens."""
        return self._numbered(self._processor.encode(text, out_type=str) for text in texts)

    @property
    def divides_words(self) -> bool:
        """Whether the model divides words into pieces; see `data.segmentation`."""
        return self._random_pieces.divides_words

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Return the token ids of a random segmentation of each text; see `data.segmentation`."""
        rng = random.Random(seed)
        return self._numbered(self._random_pieces.draw(text, rate=rate, rng=rng) for text in texts)

    def _numbered(self, segmented: Iterable[Sequence[str]]) -> list[list[int]]:
        """Return the ids of the pieces of each text."""
        ids = self._ids
        return [[ids.get(piece, UNK) for piece in pieces] for pieces in segmented]

    def decode(self, ids: Sequence[int], unknown: str | None = None) -> str:
        """Return the text of token ids. BOS, PAD and EOS are skipped; UNK becomes `unknown` (default: "<unk>")."""
        shown = (
            unknown if i == UNK and unknown is not None else self.token(i) for i in ids if i not in (BOS, PAD, EOS)
        )
        runs = itertools.groupby(shown, self._bytes.__contains__)
        parts = (self._processor.decode([*run]) if encoded else "".join(run) for encoded, run in runs)
        return "".join(parts).replace(_SPACE, " ").strip()

    def surfaces(self, text: str) -> list[str]:
        """Return each piece of a text, with a space for U+2581."""
        return [piece.replace(_SPACE, " ") for piece in self._processor.encode(text, out_type=str)]

    def is_piece(self, surface: str) -> bool:
        """Whether the model has this piece, listed or not. Otherwise it is a run of characters unknown to the model."""
        return self._processor.piece_to_id(surface.replace(" ", _SPACE)) != self._processor.unk_id()

    def token(self, i: int) -> str:
        """Return the piece of an id, with U+2581 for a space."""
        return self.words.token(int(i))

    def save(self, path: Path) -> None:
        """Write model and list to one JSON file."""
        path.write_bytes(self._content())

    def _content(self) -> bytes:
        values = {"model": base64.b64encode(self.model).decode(), "pieces": self.words.entries()}
        return json.dumps(values, ensure_ascii=False).encode("utf-8")

    @classmethod
    def load(cls, path: Path) -> "ListedPieces":
        """Read what `save` wrote.

        Raises:
          UserError: the file is damaged.
        """
        values = read_json(path, remedy="restore it")
        try:
            words = WordList.of_entries(values["pieces"])
            made = cls(base64.b64decode(values["model"], validate=True), words)
            whole = bool(made.fingerprint)  # raises ValueError for half of a surrogate pair
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise UserError(f"{path} is damaged: it is not a list of pieces with its model; restore it")
        made.check(path)
        return made

    def check(self, where: Path) -> None:
        """Raise UserError unless the model is a SentencePiece model whose pieces are in the list."""
        try:
            made = {self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())}
        except (RuntimeError, UnicodeDecodeError):
            made = set()
        if not made:
            raise UserError(f"{where} contains no SentencePiece model: it is damaged or another kind of file")
        if not made & set(self._ids):
            raise UserError(f"{where}: the SentencePiece model has no piece of its list; use the model of that list")


def of_model(path: Path) -> SentencePiece | ListedPieces:
    """Read a SentencePiece model file.

    If its special symbols have other ids than here, its other pieces are numbered after our special symbols, in order.
    Its own control symbols are left out, because they do not occur in text.

    Raises:
      UserError: the file is not a model.
    """
    made = SentencePiece.load(path)
    if made.special_ids == (BOS, PAD, EOS, UNK):
        return made
    words = tuple(piece for piece in made.ordinary if piece not in SPECIAL)
    return ListedPieces(made.model, WordList(words, (1,) * len(words)))
