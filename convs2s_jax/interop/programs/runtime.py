"""Translate standard input with an exported model, line by line:  python translate.py [--nbest=N] <FILE >OUTPUT

With --nbest=N, it writes up to N hypotheses per line: line number (from 0), score and text, separated by tabs. From
Python:

    from translate import Model
    Model("FOLDER").translate(["April 4, 1989"])

This file needs its folder and the packages in requirements.txt, nothing else.
"""

import argparse
import base64
import functools
import hashlib
import heapq  # noqa: F401  (for `merged`)
import itertools
import json
import math
import re  # noqa: F401  (for `visible`)
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence  # noqa: F401
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from jax import export
from safetensors.numpy import load_file

# in an export, definitions stand in place of these imports (`exporting._program`)
from convs2s_jax.core.text import BLANK, ODD, odd_of, visible  # noqa: F401
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data.bpe_codes import merged, of_words
from convs2s_jax.data.text_files import LONGEST

SPACE = "\u2581"
MARK, END = "@@", "</w>"
OWN: dict[str, str | int | None] = {"\u2581": "\ufdd0", "\u2585": "\ufdd1"}


class ExportError(Exception):
    """An exported model that cannot be used, or a line that cannot be translated."""


class Model:
    """An exported model, ready to translate. Programs are compiled when first needed."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        """Read manifest, vocabularies and parameters. Raises ExportError if one is missing or damaged."""
        self.folder = Path(folder).absolute()  # programs are read later, perhaps from another current folder
        try:
            self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ExportError(f"{self.folder}/manifest.json cannot be read ({error}); export the model again") from None
        for name in self.manifest["files"]:
            self._content(name)
        self._src, self._tgt = (_VOCABULARIES[v["kind"]](self.folder / v["file"]) for v in self.manifest["vocabulary"])
        stored = load_file(self.folder / self.manifest["parameters"]["file"])
        params = jax.device_put([stored[name] for name in self.manifest["parameters"]["order"]])
        if self.manifest["precompute"]:
            params = self._program(self.manifest["precompute"])(params)
        self._params = jax.block_until_ready(params)
        self._programs = {(one["rows"], one["width"]): one["file"] for one in self.manifest["programs"]}
        self._compiled = functools.lru_cache(maxsize=None)(self._program)

    def translate(self, lines: Iterable[str], *, nbest: int = 1) -> list[Any]:
        """Translate lines. With nbest above 1, return a list of (score, text) for each line, best first.

        A line break at the end of a line is dropped, so an open file can be passed.
        """
        if isinstance(lines, str):
            raise ExportError("lines is a single string; expected a list of strings")
        beams = self.manifest["search"]["beam_size"]
        if not 1 <= nbest <= beams:
            raise ExportError(f"nbest is {nbest}; use 1 to {beams}, the beam size of this export")
        texts = [line.removesuffix("\n").removesuffix("\r") for line in lines]
        if self.manifest["nfkc"]:
            texts = [unicodedata.normalize("NFKC", text) for text in texts]
        sources = self._src.encode(texts)
        sizes, widths = (sorted(set(axis)) for axis in zip(*self._programs, strict=True))
        most = min(widths[-1], self.manifest["max_source"]) - 1  # without the end symbol
        for number, source in enumerate(sources, 1):
            if len(source) > most:
                raise ExportError(
                    f"line {number} has {len(source)} tokens, but this export accepts up to {most}; split it"
                )
        results: list[list[tuple[float, str]]] = [[(0.0, "")]] * len(sources)
        order = sorted((i for i, source in enumerate(sources) if len(source)), key=lambda i: -len(sources[i]))
        while order:
            width = min(width for width in widths if width > len(sources[order[0]]))
            rows = min((n for n in sizes if n >= len(order)), default=sizes[-1])
            batch, order = order[:rows], order[rows:]
            for i, found in zip(batch, self._run([sources[i] for i in batch], rows, width), strict=True):
                results[i] = found
        if nbest == 1:
            return [found[0][1] for found in results]
        return [found[:nbest] for found in results]

    def _run(self, sources: Sequence[list[int]], rows: int, width: int) -> list[list[tuple[float, str]]]:
        """Translate one batch: a list of (score, text) for each source."""
        src = np.full((rows, width), PAD, np.int32)
        src[:, 0] = EOS
        limits = np.zeros(rows, np.int32)
        for i, source in enumerate(sources):
            src[i, : len(source)], src[i, len(source)] = source, EOS
            limits[i] = self._longest(len(source) + 1)
        found = self._compiled(self._programs[rows, width])(self._params, src, limits)
        tokens, scores, lengths = (np.asarray(part) for part in found)
        results = []
        for i in range(len(sources)):
            hypotheses = [
                (float(scores[i, w]), self._tgt.decode(tokens[i, w, : n - 1].tolist()).replace("\n", " "))
                for w, n in enumerate(lengths[i])
                if n > 0
            ]
            results.append(hypotheses or [(-math.inf, "")])
        return results

    def _longest(self, length: int) -> int:
        """Maximum number of tokens of a translation before its end symbol."""
        search = self.manifest["search"]
        wanted = max(1, int(search["max_length_a"] * length + search["max_length_b"]))
        return min(wanted, self.manifest["max_target"] - 1)

    def _program(self, name: str) -> Callable[..., Any]:
        try:
            loaded = export.deserialize(bytearray(self._content(name)))
        except Exception as error:
            made = self.manifest["made_by"]["jax"]
            raise ExportError(
                f"{name} was exported with jax {made} and cannot be read by jax {jax.__version__} ({error}); "
                f"export the model again or install jax {made}"
            ) from None
        here, known = jax.default_backend(), loaded.platforms
        if here not in known and not (here == "gpu" and {"cuda", "rocm"} & set(known)):
            raise ExportError(
                f"this model was exported for {', '.join(known)}, but JAX is using {here}; export it for {here}"
            )
        return jax.jit(loaded.call)

    def _content(self, name: str) -> bytes:
        """Return the content of a file. Raises ExportError if it is not that of the manifest."""
        content = (self.folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.manifest["files"][name]:
            raise ExportError(f"{self.folder / name} is damaged; copy the folder again")
        return content


class Words:
    """A word list, with a word and its count on each line. Words are separated by white space."""

    def __init__(self, path: Path) -> None:
        """Read the file of a vocabulary."""
        lines = path.read_bytes().decode("utf-8-sig").split("\n")[:-1]
        self._list(line.removesuffix(" #fairseq:overwrite").rstrip().rpartition(" ")[0] for line in lines)

    def _list(self, symbols: Iterable[str]) -> None:
        self._symbols = [*SPECIAL, *symbols]
        self._odd = odd_of(self._symbols)
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols) if symbol not in SPECIAL}

    def _cut(self, text: str) -> Iterable[str]:
        """The symbols of a text."""
        return text.split()

    def _joined(self, symbols: list[str]) -> str:
        """The text of symbols."""
        return " ".join(symbols)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [[self._ids.get(symbol, UNK) for symbol in self._cut(visible(text, self._odd))] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._joined([self._symbols[i] for i in ids if i not in (BOS, PAD, EOS)])


class ListedPieces(Words):
    """A SentencePiece model that splits text into pieces, and a list that assigns their ids."""

    def __init__(self, path: Path) -> None:
        """Read both from one file."""
        values = json.loads(path.read_text(encoding="utf-8"))
        self._list(piece for piece, _ in values["pieces"])
        model = self._model = _sentencepiece(base64.b64decode(values["model"]))
        self._bytes = {model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_byte(i)}

    def _cut(self, text: str) -> Iterable[str]:
        pieces: list[str] = self._model.encode(text, out_type=str)
        return pieces

    def _joined(self, symbols: list[str]) -> str:
        runs = itertools.groupby(symbols, self._bytes.__contains__)
        parts = (self._model.decode([*run]) if encoded else "".join(run) for encoded, run in runs)
        return "".join(parts).replace(SPACE, " ").strip()


class CodedWords(Words):
    """BPE codes of subword-nmt, which split words into pieces, and a list that assigns their ids."""

    def __init__(self, path: Path) -> None:
        """Read both from one file."""
        values = json.loads(path.read_text(encoding="utf-8"))
        self._list(piece for piece, _ in values["pieces"])
        self._ranks = {tuple(pair): i for i, pair in reversed(list(enumerate(values["merges"])))}
        self._apart = values["version"] == "0.1"
        self._pieces = of_words(self._pieces_of)

    def _cut(self, text: str) -> Iterable[str]:
        return [piece for word in text.split(" ") if word for piece in self._pieces(word)]

    def _joined(self, symbols: list[str]) -> str:
        parts = (one.removesuffix(MARK) if one.endswith(MARK) and one != MARK else f"{one} " for one in symbols)
        return "".join(parts).rstrip(" ")

    def _pieces_of(self, word: str) -> list[str]:
        """Split a word into pieces, all but the last marked."""
        if len(word) < 2:
            return [word]
        parts = [*word, END] if self._apart else [*word[:-1], word[-1] + END]
        parts = merged(parts, lambda *pair: self._ranks.get(pair))
        parts = parts[:-1] if parts[-1] == END else [*parts[:-1], parts[-1].removesuffix(END)]
        if parts[-1].endswith(MARK) and parts[-1] != MARK:
            parts = [*parts[:-1], parts[-1].removesuffix(MARK), MARK]
        return [*(part + MARK for part in parts[:-1]), parts[-1]]


class Pieces:
    """A SentencePiece model with its own ids."""

    def __init__(self, path: Path) -> None:
        """Read a model."""
        self._model = model = _sentencepiece(path.read_bytes())
        self._odd = odd_of(map(model.id_to_piece, range(model.get_piece_size())))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        lines = [visible(text, self._odd).translate(str.maketrans(OWN)) for text in texts]
        found: list[list[int]] = self._model.encode(lines)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        text: str = self._model.decode(ids)
        return text.translate({ord(str(b)): a for a, b in OWN.items()})


_VOCABULARIES: dict[str, Any] = {".model": Pieces, ".txt": Words, ".pieces.json": ListedPieces, ".bpe.json": CodedWords}


def _sentencepiece(model: bytes) -> Any:
    import sentencepiece  # only for vocabularies of pieces

    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines of a file, without a byte order mark. Raises ExportError if one is too long, or is not UTF-8."""
    for number in itertools.count(1):
        line = file.readline(LONGEST + 1)
        if not line:
            return
        if len(line) > LONGEST:
            raise ExportError(f"line {number} has more than {LONGEST:,} bytes; write one sentence on a line")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ExportError(f"line {number}: byte 0x{line[error.start]:02x} is not UTF-8; convert the text") from None


def main() -> None:
    """Translate standard input; the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nbest", type=int, default=1)
    nbest = parser.parse_args().nbest
    try:
        results = Model().translate(_lines(sys.stdin.buffer), nbest=nbest)
        if nbest > 1:
            results = [f"{i}\t{score}\t{text}" for i, found in enumerate(results) for score, text in found]
        sys.stdout.buffer.write("".join(f"{result}\n" for result in results).encode("utf-8"))
    except (ExportError, OSError) as error:
        print(f"translate.py: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
