"""`convs2s shortlist` and decoding with its file: made, read back, refused, and what --resume says."""

import io
import re

import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.data import vocabulary
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.training.run import prepare, run_folder
from convs2s_jax.translation import shortlists
from convs2s_jax.translation.jobs import job
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.lines import TextRequest, translate
from tests.processes import called
from tests.translation.conftest import LINES


def made_by(*arguments):
    return called(lambda given: COMMANDS["shortlist"].run(["convs2s shortlist", *given]), *arguments)


@pytest.fixture(scope="module")
def file(trained, tmp_path_factory):
    """The shortlist of the run, with few words."""
    path = tmp_path_factory.mktemp("shortlist") / "few"
    result = made_by(f"--workdir={trained}", "--words=3", "--frequent=5", f"--output={path}")
    assert result.returncode == 0, result.stderr
    assert "learning the likely words from 300 sentence pairs" in result.stderr
    assert re.search(r"few: \d\.\d target words per source word, and 5 for every sentence", result.stderr)
    return path


def test_the_file_has_likely_frequent_and_equal_words(trained, file):
    vocabularies = vocabulary.load(run_folder.vocabulary(trained))
    found = shortlists.load(file, vocabularies)
    cfg = run_folder.load_config(trained)
    text = prepare.parallel_text.read(cfg.data, "train")
    targets = [t for ids in vocabularies.tgt.encode(text.tgt) for t in ids if t > 3]
    counts = np.bincount(targets, minlength=found.size)
    assert counts[found.always].min() >= np.sort(counts)[-5]
    for s in range(4, vocabularies.src.size):
        words = found.words[found.offsets[s] : found.offsets[s + 1]].tolist()
        same = [t for t in range(4, found.size) if vocabularies.tgt.token(t) == vocabularies.src.token(s)]
        assert len(words) <= 3 + len(same)
        assert {*same} <= {*words}
    [five] = [s for s in range(4, vocabularies.src.size) if vocabularies.src.token(s) == "5"]
    assert "5" in [vocabularies.tgt.token(t) for t in found.words_for([five]).tolist()]


def test_translations_have_only_words_of_the_shortlist(desk, trained, file, quick):
    translator = job.load_translator(Options(workdir=(str(trained),), shortlist=str(file)), print)
    few = translator.shortlist
    for result in translate(translator, TextRequest(SearchConfig(beam_size=2), LINES)):
        source = translator.vocabularies.src.encode([result.source])[0]
        words = {translator.vocabularies.tgt.token(t) for t in few.words_for(source).tolist()}
        assert {*result.best.tokens} <= words
    desk.decode()
    everything = desk.read()
    desk.decode(shortlist=str(file), output="few", format="json")
    desk.decode(shortlist=str(file), output="few2")
    assert desk.read("few2") != everything
    with pytest.raises(UserError, match="is the output of another command: the file of --shortlist has changed"):
        desk.decode(output="few2", resume=True)


def test_files_that_do_not_fit_are_refused_with_one_sentence(trained, file, tmp_path):
    vocabularies = vocabulary.load(run_folder.vocabulary(trained))
    found = shortlists.load(file, vocabularies)
    swapped = vocabulary.Vocabularies(vocabularies.tgt, vocabularies.src)
    with pytest.raises(UserError, match=r"^--shortlist=.*few was created for vocabularies other than the model's"):
        shortlists.load(file, swapped)
    data, odd = file.read_bytes(), tmp_path / "odd"
    of_others = io.BytesIO()  # whole, but with a text that no command writes
    with np.load(file) as arrays:
        np.savez(of_others, **{**arrays, "vocabularies": "[" * 100_000})
    flipped = data[:400] + bytes([data[400] ^ 1]) + data[401:]
    for content in (b"", data[:-1], data[1:], flipped, of_others.getvalue()):
        odd.write_bytes(content)
        with pytest.raises(UserError, match=r"odd is not a shortlist, or is damaged; create one with: convs2s shortl"):
            shortlists.load(odd, vocabularies)
    with pytest.raises(
        UserError, match=r"no cannot be read: No such file or directory; create one with: convs2s shortl"
    ):
        shortlists.load(tmp_path / "no", vocabularies)
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory; choose another --output$"):
        shortlists.save(found, vocabularies, tmp_path / "no" / "file")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workdir=no", "--words=0"], "--words is 0: use 1 or more"),
        (["--workdir=no"], "--workdir=no: there is no such folder"),
        (
            ["--workdir=no", "--config.data.dir=x", "--config.data.src=x"],
            "--config.data.src: a shortlist uses the con",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_mistakes_in_making_one_are_told_in_one_sentence(arguments, sentence):
    result = made_by(*arguments)
    assert result.returncode == 2
    assert sentence in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("output", "why"), [("missing/few", "No such file or directory"), (".", "Is a directory")], ids=str
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_learned(trained, tmp_path, output, why):
    result = made_by(f"--workdir={trained}", f"--output={tmp_path / output}")
    assert result.returncode == 2
    assert f"cannot be written: {why}; choose another file" in result.stderr
    assert "learning" not in result.stderr


def test_options_that_do_not_go_with_a_shortlist_are_refused():
    with pytest.raises(
        UserError, match=r"--score with --shortlist: given translations are scored, and nothing is searched"
    ):
        Options(workdir=("w",), score="s", shortlist="x")
    options = Options(workdir=("w",), shortlist="x", search={"sampling": True})
    with pytest.raises(
        UserError, match=r"--shortlist with --sampling: samples are drawn from the whole vocabulary; leave one"
    ):
        options.resolve(SearchConfig())
