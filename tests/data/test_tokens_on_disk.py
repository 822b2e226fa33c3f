"""Tokenised text on disk: what was encoded comes back, is encoded once, and a damaged file is never read."""

import dataclasses
import functools
import multiprocessing
import os
import signal

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import pieces, processes, tokens_on_disk
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.tokens_on_disk import Cache, Side


@dataclasses.dataclass
class Letters:
    """Code points as ids; counts how many texts it encoded."""

    size: int = 300
    fingerprint: str = "letters"
    suffix: str = ".txt"
    encoded: int = 0
    read = staticmethod(str)

    def encode(self, texts):
        self.encoded += len(texts)
        return [[ord(char) for char in text] for text in texts]


TEXTS = ["abc", "", "x", "größer", ""]


def tokenize(folder, texts=TEXTS, vocabulary=None, name="train.de", tell=pytest.fail):
    side = Side(name, texts, vocabulary or Letters())
    return tokens_on_disk.tokenize([side], Cache(folder), tell=tell)[0]


def text_of(ids):
    return "".join(map(chr, ids))


def texts_of(tokens):
    return [text_of(tokens[i]) for i in range(len(tokens))]


@pytest.mark.parametrize("size", [300, 1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("texts", [TEXTS, [], [""], ["a"], ["ab" * (i % 7) for i in range(9000)]], ids=len)
def test_tokens_come_back(tmp_path, texts, size):
    for tokens in (tokenize(tmp_path, texts, Letters(size)), tokenize(tmp_path, texts, Letters(size))):
        assert len(tokens) == len(texts)
        assert texts_of(tokens) == texts
        assert tokens.offsets.flags.aligned
        assert tokens.lengths.dtype == np.int32
        assert tokens.lengths.tolist() == [len(text) for text in texts]
        assert tokens.tokens.dtype == (np.uint16 if size <= 1 << 16 else np.uint32)


def test_other_content_is_encoded_anew(tmp_path):
    tokenize(tmp_path)
    for texts in (TEXTS[:-1], ["ab", "c", "x", "größer", ""]):
        assert texts_of(tokenize(tmp_path, texts)) == texts
    assert texts_of(tokenize(tmp_path, vocabulary=Letters(fingerprint="other"))) == TEXTS
    assert len(list(tmp_path.iterdir())) == 4


def test_a_cut_or_a_flipped_bit_is_announced_and_written_again(tmp_path):
    tokenize(tmp_path)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 1, 79, 80, len(whole) - 1)]
    for i in range(0, 8 * len(whole), 7):
        flipped = bytearray(whole)
        flipped[i // 8] ^= 1 << i % 8
        damaged.append(flipped)
    for content in damaged:
        path.write_bytes(content)
        vocabulary, told = Letters(), []
        assert texts_of(tokenize(tmp_path, vocabulary=vocabulary, tell=told.append)) == TEXTS
        assert vocabulary.encoded == 5
        why = "it is incomplete" if len(content) < 80 else "its checksum does not match its content"
        assert told == [f"{path} is damaged ({why}): the text is tokenised again"]
        assert path.read_bytes() == whole
    tokenize(tmp_path, ["of another text"])
    [other] = set(tmp_path.iterdir()) - {path}
    other.rename(path)
    told = []
    assert texts_of(tokenize(tmp_path, tell=told.append)) == TEXTS
    assert told == [f"{path} is damaged (it contains another text): the text is tokenised again"]


def test_unusable_folder_is_refused(tmp_path):
    (tmp_path / "cache").write_text("")
    message = r"cache/train.de-.* cannot be written: (File exists|Not a directory); choose another data.cache_dir$"
    with pytest.raises(UserError, match=message):
        tokenize(tmp_path / "cache")


def tokenize_in_ranges(folder, texts, **more):
    vocabulary = pieces.train(VocabularyConfig(), texts[:300], size=120, field="size")
    return tokens_on_disk.tokenize([Side("train.de", texts, vocabulary)], Cache(folder), **more)


@pytest.mark.parametrize("workers", [1, 2])
def test_ranges_make_the_file_of_the_whole_text(tmp_path, monkeypatch, workers):
    """Also by several processes, and after a process that has done a part of them."""
    texts = [f"Satz {i} {'x' * (i % 13)}" for i in range(700)]
    tokenize_in_ranges(tmp_path / "whole", texts)
    monkeypatch.setattr(tokens_on_disk, "RANGE", 256)
    written, write = [], tokens_on_disk._write

    def interrupted(path, *content):
        write(path, *content)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as first:
        first.setattr(tokens_on_disk, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tokenize_in_ranges(tmp_path / "ranges", texts)
    assert len([*(tmp_path / "ranges").iterdir()]) == 2
    tokenize_in_ranges(tmp_path / "ranges", texts, share=processes.local(workers))
    [whole], [made] = ([*(tmp_path / name).iterdir()] for name in ("whole", "ranges"))
    assert (whole.name, whole.read_bytes()) == (made.name, made.read_bytes())


def kill(error, i):
    """Kill the process, or raise an error, at the second part."""
    if i == 1 and error:
        raise UserError(error)
    if i == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def killing(error):
    return processes.Parts(dict.fromkeys(range(3), 1), functools.partial(kill, error), print)


@pytest.mark.parametrize(("error", "message"), [("x: wrong", "^x: wrong$"), ("", r"was ended \(status -9\), perhaps")])
def test_an_error_of_a_worker_and_its_death_are_told(error, message):
    with pytest.raises(UserError, match=message):
        processes.share(killing(error), lambda _: None, workers=2)


def test_a_death_right_after_a_look_is_told(monkeypatch):
    """The last process is alive at the first look, and has been killed at the second."""

    class Process:
        looks = 0

        def __init__(self, **_):
            pass

        def start(self):
            pass

        terminate = start

        def is_alive(self):
            Process.looks += 1
            return Process.looks == 1

        @property
        def exitcode(self):
            return None if Process.looks == 1 else -9

    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", Process)
    with pytest.raises(UserError, match=r"was ended \(status -9\), perhaps"):
        processes.share(killing(""), lambda _: None, workers=2)
