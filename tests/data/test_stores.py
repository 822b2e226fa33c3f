"""Corpora and vocabularies in object stores."""

import gzip

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import parallel_text
from convs2s_jax.data.config import DataConfig, SplitFiles
from tests.stores import bucket  # noqa: F401  (a fixture)

TEXT = {"train.de": b"eins\nzwei\n", "train.en": b"one\ntwo\n"}


def upload():
    stores.write("gs://bucket/text/train.de", TEXT["train.de"])
    stores.write("gs://bucket/text/train.en.gz", gzip.compress(TEXT["train.en"]))


def test_text_in_a_store_is_that_of_a_folder(bucket, tmp_path):  # noqa: F811
    upload()
    for name, content in TEXT.items():
        (tmp_path / name).write_bytes(content)
    here = parallel_text.read(DataConfig(src="de", tgt="en", dir=str(tmp_path)), "train")
    there = DataConfig(src="de", tgt="en", dir="gs://bucket/text/")
    assert parallel_text.read(there, "train") == here
    assert len(parallel_text.read(there, "valid", optional=True)) == 0
    listed = SplitFiles(train=[("gs://bucket/text/train.de", "gs://bucket/text/train.en.gz")])
    assert parallel_text.read(DataConfig(src="de", tgt="en", files=listed), "train") == here


def test_what_is_missing_in_a_store_is_named(bucket):  # noqa: F811
    upload()
    with pytest.raises(UserError, match=r"^data.dir is 'gs://bucket/none': this folder does not exist$"):
        parallel_text.read(DataConfig(src="de", tgt="en", dir="gs://bucket/none"), "train")
    with pytest.raises(UserError, match=r"^there is no gs://bucket/text/valid\.de\[\.gz\], gs://bucket/text/valid\.en"):
        parallel_text.read(DataConfig(src="de", tgt="en", dir="gs://bucket/text"), "valid")
    with pytest.raises(UserError, match=r"^gs://bucket/a cannot be read: No such file or directory"):
        parallel_text.read(
            DataConfig(src="a", tgt="b", files=SplitFiles(train=[("gs://bucket/a", "gs://bucket/a")])), "train"
        )
