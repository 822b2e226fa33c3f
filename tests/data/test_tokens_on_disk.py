"""Tokenised text on disk: what was encoded comes back, is encoded once, and a damaged file is never read."""

import dataclasses

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import tokens_on_disk


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
    return tokens_on_disk.tokenize(texts, vocabulary or Letters(), folder, name, tell=tell)


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
