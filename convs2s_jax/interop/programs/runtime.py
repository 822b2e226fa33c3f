"""Translate with an exported model:  python translate.py [--input=FILE] [--output=FILE] [--nbest=N]

Reads standard input and writes standard output by default, one translation per line. The input may be gzipped. With
--nbest=N, it writes up to N hypotheses per line: line number (from 0), score and text, separated by tabs. The --output
file is replaced as a whole once everything is translated. From Python:

    from translate import Model
    Model("FOLDER").translate(["April 4, 1989"])

This file needs its folder and the packages in requirements.txt (jax, numpy, sentencepiece, flatbuffers), nothing else.
"""

import argparse
import base64
import errno
import functools
import gzip
import hashlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt leaves no traceback, not even of imports

import jax
import numpy as np
from jax import export

FORMAT = 2
GZIP = b"\x1f\x8b"
BOS, PAD, EOS, UNK = range(4)
STDIN, STDOUT = 0, 1
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
SPACE = "\u2581"
MARK, END = "@@", "</w>"
OWN: dict[str, str | int | None] = {"\u2581": "\ufdd0", "\u2585": "\ufdd1"}
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


class ExportError(Exception):
    """An exported model that cannot be used, or a line that cannot be translated."""


class Model:
    """An exported model, ready to translate. Programs are compiled when first needed."""

    def __init__(self, folder: str | Path = Path(__file__).parent) -> None:
        """Read manifest, vocabularies and parameters. Raises ExportError if one is damaged or JAX finds no device."""
        self.folder = Path(folder).absolute()  # programs are read later, perhaps from another current folder
        self.manifest = _manifest(self.folder)
        for name in self.manifest["files"]:
            self._content(name, "is damaged; copy the folder again")
        self._src, self._tgt = (_VOCABULARIES[v["kind"]](self.folder / v["file"]) for v in self.manifest["vocabulary"])
        stored = _safetensors(self.folder / self.manifest["parameters"]["file"])
        params = [stored[name] for name in self.manifest["parameters"]["order"]]
        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".") or "there is none of that kind"
            raise ExportError(f"JAX finds no device: {why}; unset JAX_PLATFORMS or set JAX_PLATFORMS=cpu") from error
        params = jax.device_put(params)
        if self.manifest["precompute"]:
            params = self._program(self.manifest["precompute"])(params)
        self._params = jax.block_until_ready(params)
        self._programs: dict[tuple[int, int], Callable[..., Any]] = {}

    def translate(self, lines: Iterable[str], *, nbest: int = 1) -> list[Any]:
        """Translate lines. With nbest above 1, return a list of (score, text) for each line, best first.

        A line break at the end of a line is dropped, so an open file can be passed.
        """
        return self._translate(_texts(lines), nbest)

    def _translate(self, lines: Sequence[str], nbest: int) -> list[Any]:
        """`translate` for lines without line breaks."""
        beams = self.manifest["search"]["beam_size"]
        if not isinstance(nbest, Integral) or not 1 <= nbest <= beams:
            raise ExportError(f"nbest is {nbest}; use 1 to {beams}, the beam size of this export")
        sources = self._src.encode(lines)
        most = min(max(self._widths), self.manifest["max_source"]) - 1  # without the end symbol
        for number, source in enumerate(sources, 1):
            if len(source) > most:
                raise ExportError(
                    f"line {number} has {len(source)} tokens, but this export accepts up to {most}; split it"
                )
        results: list[list[tuple[float, str]]] = [[(0.0, "")]] * len(sources)
        order = sorted((i for i, source in enumerate(sources) if len(source)), key=lambda i: -len(sources[i]))
        while order:
            width = min(width for width in self._widths if width > len(sources[order[0]]))
            rows = min((n for n in self._rows if n >= len(order)), default=max(self._rows))
            batch, order = order[:rows], order[rows:]
            for i, found in zip(batch, self._run([sources[i] for i in batch], rows, width), strict=True):
                results[i] = found
        if nbest == 1:
            return [found[0][1] for found in results]
        return [found[:nbest] for found in results]

    @property
    def _rows(self) -> list[int]:
        return sorted({program["rows"] for program in self.manifest["programs"]})

    @property
    def _widths(self) -> list[int]:
        return sorted({program["width"] for program in self.manifest["programs"]})

    def _run(self, sources: Sequence[list[int]], rows: int, width: int) -> list[list[tuple[float, str]]]:
        """Translate one batch: a list of (score, text) for each source."""
        src = np.full((rows, width), PAD, np.int32)
        src[:, 0] = EOS
        limits = np.zeros(rows, np.int32)
        for i, source in enumerate(sources):
            src[i, : len(source)], src[i, len(source)] = source, EOS
            limits[i] = self._longest(len(source) + 1)
        found = self._at(rows, width)(self._params, src, limits)
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

    def _at(self, rows: int, width: int) -> Callable[..., Any]:
        if (rows, width) not in self._programs:
            [name] = [p["file"] for p in self.manifest["programs"] if (p["rows"], p["width"]) == (rows, width)]
            self._programs[rows, width] = self._program(name)
        return self._programs[rows, width]

    def _program(self, name: str) -> Callable[..., Any]:
        content = bytearray(self._content(name, "was changed after the model was loaded; create a new Model"))
        try:
            loaded = export.deserialize(content)
        except ImportError:
            raise ExportError("jax needs flatbuffers to load programs; run pip install -r requirements.txt") from None
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

    def _content(self, name: str, otherwise: str) -> bytes:
        """Return the content of a file. Raises ExportError if it is missing, or differs from that of the manifest."""
        try:
            content = (self.folder / name).read_bytes()
        except OSError as error:
            raise ExportError(f"{self.folder / name} cannot be read: {error.strerror}; copy the whole folder") from None
        if hashlib.sha256(content).hexdigest() != self.manifest["files"][name]:
            raise ExportError(f"{self.folder / name} {otherwise}")
        return content


def _manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest. Raises ExportError if the folder is damaged."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{folder}/manifest.json cannot be read ({error}); export the model again") from None
    if not isinstance(manifest, dict):
        raise ExportError(f"{folder}/manifest.json is damaged; copy the folder again")
    if manifest.get("format") != FORMAT:
        raise ExportError(
            f"{folder} has format {manifest.get('format')}, but this program reads format {FORMAT}; use the "
            "translate.py in that folder"
        )
    if manifest.get("checksum") != checksum(manifest):
        raise ExportError(f"{folder}/manifest.json is damaged or was edited; copy the folder again")
    return manifest


def checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of all fields of a manifest except `checksum`."""
    fields = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class Words:
    """A word list. Words are separated by white space."""

    def __init__(self, path: Path) -> None:
        """Read a list with a word and its count on each line."""
        lines = path.read_bytes().decode("utf-8-sig").split("\n")[:-1]
        self._list(line.removesuffix(" #fairseq:overwrite").rstrip().rpartition(" ")[0] for line in lines)

    def _list(self, symbols: Iterable[str]) -> None:
        self._symbols = [*SPECIAL, *symbols]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols) if symbol not in SPECIAL}

    def _cut(self, text: str) -> Iterable[str]:
        """The symbols of a text."""
        return text.split()

    def _joined(self, symbols: list[str]) -> str:
        """The text of symbols."""
        return " ".join(symbols)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [[self._ids.get(symbol, UNK) for symbol in self._cut(text)] for text in texts]

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
        self._pieces = functools.lru_cache(maxsize=2**17)(self._pieces_of)

    def _cut(self, text: str) -> Iterable[str]:
        return [piece for word in text.split() for piece in self._pieces(word)]

    def _joined(self, symbols: list[str]) -> str:
        return f"{' '.join(symbols)} ".replace(f"{MARK} ", "").rstrip(" ")

    def _pieces_of(self, word: str) -> list[str]:
        """Split a word into pieces, all but the last marked. The pair of the lowest rank is merged first."""
        if len(word) < 2:
            return [word]
        parts = [*word, END] if self._apart else [*word[:-1], word[-1] + END]
        while found := [pair for pair in itertools.pairwise(parts) if pair in self._ranks]:
            pair = min(found, key=self._ranks.__getitem__)
            merged: list[str] = []
            for part in parts:  # a part that is already merged is longer than the pair's first
                if merged and (merged[-1], part) == pair:
                    merged[-1] += part
                else:
                    merged.append(part)
            parts = merged
        parts = parts[:-1] if parts[-1] == END else [*parts[:-1], parts[-1].removesuffix(END)]
        return [*(part + MARK for part in parts[:-1]), parts[-1]]


class Pieces:
    """A SentencePiece model with its own ids."""

    def __init__(self, path: Path) -> None:
        """Read a model."""
        self._model = _sentencepiece(path.read_bytes())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        found: list[list[int]] = self._model.encode([text.translate(str.maketrans(OWN)) for text in texts])
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        text: str = self._model.decode(ids)
        return text.translate({ord(str(b)): a for a, b in OWN.items()})


_VOCABULARIES: dict[str, Any] = {".model": Pieces, ".txt": Words, ".pieces.json": ListedPieces, ".bpe.json": CodedWords}


def _sentencepiece(model: bytes) -> Any:
    import sentencepiece  # only for vocabularies of pieces

    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file: the length of a JSON header, the header, the bytes of all arrays."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(content[8 + size + begin : 8 + size + end], DTYPES[entry["dtype"]])
        arrays[name] = flat.reshape(entry["shape"])
    return arrays


def _texts(lines: Iterable[str]) -> list[str]:
    """The lines without their final line breaks. Raises ExportError if `lines` is not a list of lines."""
    if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
        raise ExportError(f"lines is {str(lines)[:40]!r} of type {type(lines).__name__}; expected a list of strings")
    texts = []
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise ExportError(f"line {number} is {str(line)[:40]!r} of type {type(line).__name__}; expected a string")
        texts.append(line.removesuffix("\n").removesuffix("\r"))
        if "\n" in texts[-1]:
            raise ExportError(f"line {number} contains a line break; pass each line as a separate string")
        try:
            line.encode()
        except UnicodeEncodeError:
            raise ExportError(
                f"line {number} contains half of a surrogate pair, which is not a character; correct its encoding"
            ) from None
    return texts


def _lines(path: str) -> list[str]:
    """Read the lines of a UTF-8 file, plain or gzipped; "-" is standard input. Raises ExportError if it is not one."""
    name = "standard input" if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise ExportError("standard input is closed: redirect a file to it, or use --input=FILE")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        which = name if path == "-" else f"--input={path}"
        raise ExportError(f"{which} cannot be read: {error.strerror}; choose a text file") from error
    try:
        if data.startswith(GZIP) or path.endswith(".gz"):
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ExportError(
            f"{name} is not a complete gzip file ({error}): copy it again, or rename it without .gz if it is plain text"
        ) from error
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise ExportError(
            f"{name}, line {line}: byte 0x{byte:02x} is not UTF-8; convert the file, for example with iconv -t utf-8"
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _check_output(output: str, source: str, folder: Path) -> None:
    """Refuse an output that cannot be written, or that would overwrite the input or a file of the export.

    Args:
      output, source: values of --output and --input; "-" for standard output and standard input.
      folder: folder of the export.
    """
    if output == "-" and sys.stdout is None:
        raise ExportError("standard output is closed: redirect it to a file, or use --output=FILE")
    if not output:
        raise ExportError("--output is empty; specify a file, or - for standard output")
    if _is_stdout(output):
        return
    try:
        if os.path.isdir(output):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.isfile(output) or not os.path.exists(output):  # neither a device nor a pipe
            with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(output))):
                pass
    except OSError as error:
        raise _unwritable(output, error) from error
    own = (Path(__file__).name, "manifest.json", "requirements.txt", *_manifest(folder)["files"])
    if _same(output, STDIN if source == "-" else source) and os.path.isfile(output):
        raise ExportError(f"--output={output} is the --input file and would be overwritten; choose another file")
    if any(_same(output, folder / name) for name in own):
        raise ExportError(f"--output={output} is part of this export and would be overwritten; choose another file")


def _write(output: str, content: bytes) -> None:
    """Write the output. A regular file is replaced atomically and keeps its permissions; pipes and devices are not."""
    try:
        if _is_stdout(output):
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        elif os.path.exists(output) and not os.path.isfile(output):
            Path(output).write_bytes(content)
        else:
            path = Path(os.path.realpath(output))  # a link stays a link
            part = path.with_name(f".translate-{uuid.uuid4().hex}")
            try:
                part.write_bytes(content)
                if path.exists():
                    shutil.copymode(path, part)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        if _is_stdout(output):  # the rest of the buffer would fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        raise _unwritable(output, error) from error


def _is_stdout(output: str) -> bool:
    """Whether the output is standard output, also under the name /dev/stdout, to which others may write as well."""
    return output == "-" or _same(output, STDOUT)


def _same(path: str | Path, other: str | Path | int) -> bool:
    """Whether two names refer to the same file. The second may be the descriptor of an open file."""
    try:
        return os.path.samestat(os.stat(path), os.stat(other))
    except OSError:  # one of them does not exist
        return False


def _unwritable(output: str, error: OSError) -> ExportError:
    name = "standard output" if output == "-" else f"--output={output}"
    return ExportError(f"{name} cannot be written: {error.strerror}; choose another file")


def main() -> None:
    """Translate a file; the command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", default="-")
    parser.add_argument("--output", default="-")
    parser.add_argument("--nbest", type=int, default=1)
    options = parser.parse_args()
    try:
        _check_output(options.output, options.input, Path(__file__).parent)
        lines = _lines(options.input)
        results = Model()._translate(lines, options.nbest)
        if options.nbest > 1:
            results = [f"{i}\t{score}\t{text}" for i, found in enumerate(results) for score, text in found]
        _write(options.output, "".join(f"{result}\n" for result in results).encode("utf-8"))
    except (ExportError, OSError) as error:
        print(f"translate.py: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
