"""TensorFlow Datasets without TensorFlow, on a data set made here."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
core = tensorflow_datasets.core

from convs2s_jax.core.errors import UserError  # noqa: E402
from convs2s_jax.data import corpora, parallel_text, tables, tfds  # noqa: E402
from convs2s_jax.data.config import DataConfig  # noqa: E402
from tests import tiny  # noqa: E402

EXAMPLES = {
    "train": [("größer\u202fals", "greater than"), ("zwei\nZeilen", "two\r\nlines"), ("", "")],
    "validation": [("eins", "one")],
}

with tensorflow_datasets.core.registered.skip_registration():

    class Phrases(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self):
            text = tensorflow_datasets.features.Text()
            features = tensorflow_datasets.features.FeaturesDict(
                {"de": text, "en": text, "number": np.int64, "raw": text}
            )
            return tensorflow_datasets.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _downloads):
            return {split: self._generate_examples(split) for split in EXAMPLES}

        def _generate_examples(self, split):
            for i, (de, en) in enumerate(EXAMPLES[split]):
                yield i, {"de": de, "en": en, "number": i, "raw": b"gr\xfcn"}


class PhrasesOfTheLibrary(Phrases):
    """Known to the library, as its own data sets are, and not prepared."""


class PhrasesOutOfReach(Phrases):
    def _split_generators(self, _downloads):
        raise ConnectionError("no route to host\nmore about it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    Phrases(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def config(folder, name="phrases", **values):
    return DataConfig(**{"corpus": f"tfds:{name}", "src": "de", "tgt": "en", "tfds_dir": str(folder), **values})


def test_both_sides_are_read_as_lines(folder, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK", 2)
    text = parallel_text.read(config(folder), "train")
    assert sorted(zip(text.src, text.tgt, strict=True)) == [
        ("", ""),
        ("größer\u202fals", "greater than"),
        ("zwei Zeilen", "two lines"),
    ]
    assert parallel_text.read(config(folder), "train") == text
    assert parallel_text.read(config(folder, src="en", tgt="de"), "valid").src == ["one"]
    assert parallel_text.read(config(folder), "valid") == corpora.ParallelText(["eins"], ["one"], "valid")
    assert len(parallel_text.read(config(folder), "test", optional=True)) == 0


def test_its_files_tell_a_text_and_its_sides_from_others(folder, tmp_path):
    found = corpora.checksums(config(folder), "train")
    assert found == corpora.checksums(config(folder), "train")
    assert found != corpora.checksums(config(folder, src="en", tgt="de"), "train")
    assert found != corpora.checksums(config(folder), "valid")
    assert corpora.checksums(config(folder), "test") is None
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert found == corpora.checksums(config(copy), "train")
    for path in copy.rglob("*train*"):
        path.write_bytes(path.read_bytes() + b"\0")
    assert found != corpora.checksums(config(copy), "train")


@pytest.mark.parametrize(
    ("values", "split", "message"),
    [
        ({}, "test", r"data\.corpus is 'tfds:phrases': it has no split 'test'"),
        ({"src": "fr"}, "train", "'tfds:phrases', row 1: there is no 'fr'; available: de, en, number, raw"),
        ({"tgt": "number"}, "train", "'tfds:phrases', row 1: 'number' is 0, not text"),
        ({"tgt": "raw"}, "train", "'tfds:phrases', row 1: byte 0xfc is not UTF-8; convert the file"),
        ({"name": "nonsense"}, "train", r"'tfds:nonsense': .* neither known to .* nor prepared in data\.tfds_dir '.+'"),
    ],
)
def test_what_it_has_not_is_refused(folder, values, split, message):
    with pytest.raises(UserError, match=message):
        parallel_text.read(config(folder, **values), split)


def test_a_known_data_set_is_prepared_or_it_is_said_why_not(tmp_path, monkeypatch):
    assert parallel_text.read(config(tmp_path, "phrases_of_the_library"), "valid").tgt == ["one"]
    message = r"'tfds:phrases_out_of_reach' cannot be read \(.*no route to host\): prepare it elsewhere"
    with pytest.raises(UserError, match=message):
        parallel_text.read(config(tmp_path, "phrases_out_of_reach"), "train")
    monkeypatch.setattr(PhrasesOutOfReach, "url_infos", {"http://site.invalid/file": None})
    monkeypatch.setattr(tfds, "unreachable", lambda urls: f"no answer from {[*urls]}")
    message = r"cannot be downloaded: no answer from \['http://site.invalid/file'\]\): prepare it elsewhere"
    with pytest.raises(UserError, match=message):
        parallel_text.read(config(tmp_path / "other", "phrases_out_of_reach"), "train")


@pytest.mark.drill
@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("wmt14_translate/de-en", "1.0.0"),
        ("para_crawl/ende", "1.2.0"),
        ("opus", "medical/0.1.0"),
        ("ted_hrlr_translate/de_to_en", "1.0.0"),  # the library does not know this configuration
    ],
)
def test_translation_data_sets_are_read_where_they_are_prepared(tmp_path, name, inner):
    class Translations(Phrases, skip_registration=True):
        BUILDER_CONFIGS = [core.BuilderConfig(name=f"{name}/{inner}".split("/")[1], version=inner.rpartition("/")[2])]  # noqa: RUF012

        def _info(self):
            features = tensorflow_datasets.features.Translation(languages=("de", "en"))
            return core.DatasetInfo(builder=self, features=features, supervised_keys=("de", "en"))

        def _generate_examples(self, split):
            return ((i, {"de": de, "en": en}) for i, (de, en) in enumerate(EXAMPLES[split]))

    Translations.name = name.partition("/")[0]
    Translations(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    assert (tmp_path / name / inner / "dataset_info.json").exists()
    text = parallel_text.read(config(tmp_path, name), "train")
    assert {*zip(text.src, text.tgt, strict=True)} == {
        ("", ""),
        ("größer\u202fals", "greater than"),
        ("zwei Zeilen", "two lines"),
    }


def test_tensorflow_and_the_data_sets_of_others_stay_out():
    code = (
        "import sys; from convs2s_jax.data import corpora; assert 'tensorflow_datasets' not in sys.modules; "
        "from convs2s_jax.data import tfds; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tiny.ROOT, check=True)
