"""Parsers of outside bytes: whatever comes in, a valid value that can be written and read again, or a UserError.

The examples are the same in every run. `make drills` tries many more of them.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convs2s_jax.core.config import build, literal, override, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import read_json
from convs2s_jax.data.bpe_codes import load_coded, load_codes
from convs2s_jax.data.pieces import load_listed, load_model
from convs2s_jax.data.symbols import Vocabulary, load_labels, load_words, word_list
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.config import Config
from tests import tiny
from tests.data.vocabularies import ODD

FEW, MANY = 25, 3000

LETTERS = st.text("ab 9[]{}:,'\"\n\r\t\0\x1b\x85\u2028\ufeff\u00e9\u2581\U0001f600\ud800-+*.e_", max_size=40)
PARTS = [b"haus 12\n", b"a", b" ", b"\r\n", b"\n", b"9" * 4400, b"\xff", b"<unk> 1\n", b"\x1f\x8b"]
KNOWN = [
    b"haus " + b"9" * 4400 + b"\n",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 5000,
    b"\xef\xbb\xbf\xef\xbb\xbfa\n",
    b"a\r\r",
]
"""Tried each time: all were once answered with a traceback, or not read back."""
BYTES = st.one_of(
    st.binary(max_size=60),
    LETTERS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(PARTS)).map(b"".join),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | LETTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(LETTERS, inner, max_size=4),
    max_leaves=12,
)


def leaves(values: Any, path: str = "") -> list[str]:
    """The paths of all values in nested dictionaries."""
    if isinstance(values, dict):
        return [leaf for name, inner in values.items() for leaf in leaves(inner, f"{path}.{name}" if path else name)]
    return [path]


PATHS = leaves(to_dict(tiny.config()))
ODDITIES = ["[" * 500, "[[[0]*999]*999]*999", "1e999", "nan", "9" * 5000, "0x" + "f" * 5000, "-1", "a\0b", "{1: 2}"]
SPELLINGS = st.one_of(VALUES.map(repr), LETTERS, st.sampled_from(ODDITIES))


def text_is_read(data: bytes, folder: Path) -> None:
    """Lines are those of the text between newlines, and line numbers agree."""
    path = folder / "x.de"
    path.write_bytes(data)
    lines = read_lines(path)
    assert not any("\n" in line for line in lines)
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n") and data not in (b"", b"\xef\xbb\xbf"))
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    again = [line.removesuffix("\r") for line in lines]
    again[:1] = [line.removeprefix("\ufeff") for line in again[:1]]
    assert read_lines(path) == again


def loaded(load: Callable[[Path], Vocabulary]) -> Callable[[bytes, Path], None]:
    def check(data: bytes, folder: Path) -> None:
        """What is loaded encodes and decodes any text, and is the same after it was saved."""
        path = folder / "vocabulary"
        path.write_bytes(data)
        made = load(path)
        for ids in made.encode([ODD, "haus see", ""]):
            assert all(0 <= i < made.size for i in ids)
            assert isinstance(made.decode(ids), str)
        made.save(path)
        assert load(path).fingerprint == made.fingerprint

    return check


def codes_are_read(data: bytes, folder: Path) -> None:
    """Pieces of any word are the word, and the codes are the same after they were written."""
    path = folder / "codes"
    path.write_bytes(data)
    made = load_codes(path)
    for word in ODD.split():
        assert "".join(f"{piece} " for piece in made.cut(word)).replace("@@ ", "") == f"{word} "
    path.write_bytes(made.codes())
    assert load_codes(path) == made


def json_is_read(data: bytes, folder: Path) -> None:
    """As the library reads it."""
    path = folder / "x.json"
    path.write_bytes(data)
    assert repr(read_json(path, remedy="")) == repr(json.loads(data.decode("utf-8-sig")))


def config_is_read(data: bytes, folder: Path) -> None:
    """A configuration of a run that was written by anyone."""
    (folder / "config.json").write_bytes(data)
    cfg = run_folder.load_config(folder)
    run_folder.write_config(folder, cfg)
    assert run_folder.load_config(folder) == cfg


PARSERS = {
    "text": text_is_read,
    "words": loaded(load_words),
    "labels": loaded(load_labels),
    "pieces": loaded(load_listed),
    "coded words": loaded(load_coded),
    "codes": codes_are_read,
    "model": loaded(load_model),
    "JSON": json_is_read,
    "config.json": config_is_read,
}


def tried(count: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None], *known: Any) -> None:
    """Call `check` with examples, and first with those known; a UserError is an answer as good as any."""

    def attempt(value: Any) -> None:
        try:
            check(value)
        except UserError as error:
            sentence = str(error)
            if not 0 < len(sentence) < 20_000:
                raise AssertionError("a sentence is short") from error

    for value in known:
        attempt(value)
    checks = list(HealthCheck)
    settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=checks)(
        given(strategy)(attempt)
    )()


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """A file with a byte changed, or cut."""
    place = st.integers(0, len(data) - 1)
    changed = st.tuples(place, st.integers(0, 255)).map(lambda at: data[: at[0]] + bytes([at[1]]) + data[at[0] + 1 :])
    return changed | place.map(lambda end: data[:end])


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A good file of each kind, to be changed."""
    folder = tmp_path_factory.mktemp("intact")
    run_folder.write_config(folder, tiny.config())
    config = (folder / "config.json").read_bytes()
    word_list(("haus", "see"), (3, 2)).save(folder / "x")
    return {
        "text": b"ein Haus\r\nam See\n",
        "words": (folder / "x").read_bytes(),
        "labels": b"a\nb\n",
        "pieces": json.dumps({"model": "", "pieces": [["haus", 3]]}).encode(),
        "coded words": json.dumps({"version": "0.2", "merges": [["s", "ee</w>"]], "pieces": [["see", 3]]}).encode(),
        "codes": b"#version: 0.1\ne </w>\ns e</w>\n",
        "model": b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02",
        "JSON": b'{"a": [1, 2.5, null, "x"]}',
        "config.json": config,
    }


def both(name: str, count: int, intact: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        strategy = BYTES | mutated(intact[name])
        if name in ("JSON", "config.json", "pieces", "coded words"):
            strategy |= VALUES.map(lambda value: json.dumps(value).encode())
        tried(count, strategy, lambda data: PARSERS[name](data, Path(folder)), *KNOWN)


def override_is_read(given_: tuple[str, str]) -> None:
    """A field set from a command line: a configuration that JSON gives back, or a refusal."""
    path, text = given_
    cfg = build(Config, override(tiny.values(), path, text))
    assert build(Config, json.loads(json.dumps(to_dict(cfg)))) == cfg


def literal_is_read(value: Any) -> None:
    assert repr(literal(repr(value))) == repr(value) or "nan" in repr(value) or "inf" in repr(value)


counts = pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.drill)])


@counts
@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_are_read_or_refused(name, count, intact, tally):
    both(name, count, intact)
    tally(tries=count)


@counts
def test_any_override_is_read_or_refused(count, tally):
    known = [("data.batch.tokens", text) for text in ODDITIES]
    tried(count, st.tuples(st.sampled_from(PATHS), SPELLINGS), override_is_read, *known)
    tally(tries=count)


def test_a_literal_is_the_value_that_it_spells():
    tried(FEW, VALUES, literal_is_read)
