"""The page shows what the files and the decoder say, workdirs stay as they were, and mistakes are one sentence."""

import dataclasses
import json
import re
import shutil
from dataclasses import replace

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import packages
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS
from convs2s_jax.data import parallel_text
from convs2s_jax.metrics import scoring
from convs2s_jax.reporting import charts, runs
from convs2s_jax.reporting import report as reports
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.translations import Translations, chosen, spread
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import lines
from convs2s_jax.translation.translator import load
from tests import stores, tiny
from tests.processes import called
from tests.workdirs import unpacked

bucket = stores.bucket
KIM = {"kind": "classifier", "embedding_dim": 8, "features": {"kind": "kim", "widths": [3], "maps": 4}}


def made(*workdirs, **others):
    """What the page about some runs shows, and what was told."""
    told, options = [], ReportOptions(workdir=tuple(map(str, workdirs)), **others)
    return reports.content(runs.read_all(options.workdir, list(workdirs)), options, told.append), told


@pytest.fixture
def no_scripts(monkeypatch):
    """Pages without the scripts of charts, which take seconds to bundle."""
    monkeypatch.setattr(charts, "bundle", lambda: "")


def values(chart):
    """The rows of a chart."""
    return (
        [row for rows in chart["datasets"].values() for row in rows] if "datasets" in chart else chart["data"]["values"]
    )


def test_the_page_shows_what_the_files_and_the_decoder_say(tmp_path):
    one = unpacked("convs2s", tmp_path)
    two = shutil.copytree(one, tmp_path / "two")
    before = {path: path.stat().st_mtime_ns for path in one.rglob("*")}
    data, told = made(one, two, lines=4)
    assert [line.partition(" ")[2] for line in told[:2]] == ["translating 4 of 8 lines of the test split"] * 2
    curves = {one["title"]: values(one["chart"]) for one in data["curves"]}
    for title, field in (("Loss", "loss"), ("Perplexity", "perplexity"), ("Throughput", "tokens_per_second")):
        expected = [(r["split"], r["step"], r[field]) for r in tiny.metrics(one) if r.get(field) is not None]
        for run in ("convs2s", "two"):
            found = [(row["split"], row["step"], row["value"]) for row in curves[title] if row["run"] == run]
            assert sorted(found) == sorted(expected)
    translator = load(one, tell=print)
    shown = data["translations"]["lines"]
    sources, references = ([line[side] for line in shown] for side in ("source", "reference"))
    results = lines.translate(translator, lines.TextRequest(translator.cfg.search, sources))
    texts = ["".join(text for text, _ in line["runs"]["convs2s"]["pieces"]) for line in shown]
    assert texts == [result.best.text for result in results]
    assert [line["runs"]["two"]["score"] for line in shown] == pytest.approx(
        [result.best.score for result in results], rel=1e-4
    )
    corpus = parallel_text.read(translator.cfg.data, "test")
    numbers = [line["number"] - 1 for line in shown]
    assert (sources, references) == ([corpus.src[i] for i in numbers], [corpus.tgt[i] for i in numbers])
    expected = scoring.score(texts, [references])
    measured = {(row["run"], row["metric"]): row for row in data["scores"]["measured"]}
    assert measured["two", "BLEU"]["score"] == pytest.approx(expected["bleu"].value)
    assert measured["two", "chrF2"]["score"] == pytest.approx(expected["chrf"].value)
    src, tgt = translator.vocabularies.src, translator.vocabularies.tgt
    assert {seen["name"].partition(",")[0] for seen in data["attention"]} == {"convs2s", "two"}
    for seen in data["attention"]:
        place = numbers.index(int(re.search(r", line (\d+): ", seen["name"])[1]) - 1)
        for side, vocabulary, text in (("source", src, sources[place]), ("target", tgt, texts[place])):
            assert seen[side] == [vocabulary.token(i) for i in (*vocabulary.encode([text])[0], EOS)]
        for weights in seen["layers"].values():
            assert len(weights) == len(seen["target"])
            assert all(len(row) == len(seen["source"]) for row in weights)
            assert all(sum(row) == pytest.approx(1, abs=0.02) for row in weights)
    assert {path: path.stat().st_mtime_ns for path in one.rglob("*")} == before


def test_a_run_in_a_store_has_the_page_of_a_local_one(bucket, tmp_path, no_scripts):
    here = unpacked("convs2s", tmp_path)
    shutil.copytree(here, bucket / "convs2s")
    pages = []
    for workdir, output in ((str(here), tmp_path / "out"), ("gs://bucket/convs2s", tmp_path / "other")):
        options = ReportOptions(workdir=(workdir,), output=str(output), lines=2)
        path = reports.report(options, when="today", tell=print)
        assert path == output / "index.html"
        pages.append(path.read_text())
    assert pages[0].replace(str(here), "gs://bucket/convs2s") == pages[1]


def test_only_runs_with_the_same_lines_are_compared():
    one = Translations((0,), ("a",), ("b",), (2,), ("c",), (-1.0,), 1, "beam 1")
    absent = []
    texts = {"x": one, "y": replace(one, references=("d",)), "z": replace(one, texts=("e",))}
    assert list(reports.comparable(texts, absent)) == ["x", "z"]
    assert absent == ["y is omitted: its lines differ from those of x; create a separate report for it."]
    assert reports.comparable({}, absent) == {}


def test_what_a_run_lacks_is_a_sentence(tmp_path, no_scripts):
    language_model = {"model__encoder": {"kind": "none"}, "model__decoder__attention_layers": [], "data__src": ""}
    for name, changes in (
        ("kinds", {"model": KIM, "data__corpus": "cldr_kinds"}),
        ("new", {}),
        ("lm", language_model),
    ):
        (tmp_path / name).mkdir()
        run_folder.write_config(tmp_path / name, tiny.config(**changes))
    data, told = made(tmp_path / "kinds", tmp_path / "new", tmp_path / "lm")
    assert data["scores"] is data["labels"] is None
    assert data["absent"]["scores"] == [
        "kinds is omitted: model.kind is 'classifier', which does not translate; use a run of an encoder_decoder.",
        "new is omitted: it has no checkpoint yet.",
        "lm is omitted: it is a language model, which does not translate.",
    ]
    assert "kinds: translations are omitted (model.kind is 'classifier'" in told[0]
    assert dict(data["runs"][0]["facts"])["Model"] == "classifier, features kim"
    quick, _ = made(tmp_path / "new", lines=0)
    assert quick["absent"]["scores"] == ["Nothing was translated, since --lines is 0."]
    page = reports.page(data, when="today")
    for sentence in (*data["absent"]["scores"], "No run has reported numbers yet.", "No run has samples."):
        assert sentence.replace("'", "&#39;") in page


def test_labels_have_their_f1_of_the_test_set(tmp_path):
    tests = [{"step": step, "split": "test", "loss": 2.0, "f1/price": 10.0 * step, "f1/day": 7.0} for step in (4, 6)]
    one = runs.Run("b", tmp_path, tiny.config(data__corpus="cldr_kinds", model=KIM), tuple(tests))
    other = dataclasses.replace(one, name="c", records=({"step": 2, "split": "test", "loss": 1.0, "f1/day": 3.0},))
    assert reports.label_section([dataclasses.replace(one, records=())]) is None
    assert reports.label_section([one, other]) == {
        "runs": {"b": 6, "c": 2},
        "rows": [("price", [60.0, None]), ("day", [7.0, 3.0])],
    }


def test_steps_with_the_same_output_share_a_row(tmp_path):
    samples = {step: (runs.Sample("a", text, "c d"),) for step, text in ((2, "c"), (4, "c"), (6, "c e"), (8, "c"))}
    [found] = reports.sample_section([runs.Run("a", tmp_path, tiny.config(), samples=samples)])
    assert (found["source"], found["reference"]) == ("a", "c d")
    assert [(v["step"], v["last"], v["text"]) for v in found["versions"]] == [(2, 4, "c"), (6, 6, "c e"), (8, 8, "c")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "report: --workdir is missing; specify a run, or several to compare, as in --workdir=runs/a,runs/b"),
        (["--workdir={tmp}/no"], "--workdir={tmp}/no: there is no such folder"),
        (["--workdir={tmp}"], "contains no config.json: no training was started there"),
        (["--workdir={tmp}", "--output={tmp}/page"], "is inside --workdir={tmp}, which a report does not modify"),
        (["--workdir={tmp}/no", "--lines=-1"], "--lines is -1; use 0 or more"),
        (["--workdir={tmp}/no", "--config.model.dropout=1"], "only --config.search.* can be set"),
        (["--workdir={tmp}/no", "--output="], "--output is empty; specify a folder"),
        (["--workdir={tmp}/no", "--lm_weight=0"], "--lm_weight: a report translates without a language model; remove"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, arguments, sentence):
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    ended = called(lambda rest: COMMANDS["report"].run(["report", *rest]), *given)
    assert ended.returncode == 2
    assert sentence.format(tmp=tmp_path) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_refused_before_anything_is_translated(tmp_path, monkeypatch):
    run_folder.write_config(tmp_path, tiny.config())
    monkeypatch.setattr(reports, "content", pytest.fail)
    output = tmp_path.parent / "file"
    output.write_text("")
    wrong = ReportOptions(workdir=(str(tmp_path),), output=str(output), search={"beam_size": 0})
    with pytest.raises(UserError, match=r"--beam_size is 0: use a value between 1 and 10000"):
        reports.report(wrong, when="today", tell=print)
    with pytest.raises(UserError, match="file cannot be written: File exists; choose another folder"):
        reports.report(replace(wrong, search={}), when="today", tell=print)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda *_: None)
    ended = called(
        lambda rest: COMMANDS["report"].run(["report", *rest]), f"--workdir={tmp_path}", f"--output={output}"
    )
    assert "a report needs altair, jinja2, vl_convert: pip install '.[report]'" in ended.stderr


def test_no_text_of_a_corpus_ends_its_place_in_the_page(tmp_path, no_scripts):
    hostile = "</script><script>alert(1)</script> <!-- \u2028 & ' \""
    run = runs.Run(hostile, tmp_path, tiny.config(), samples={2: (runs.Sample(hostile, hostile, "a"),)})
    record = {"step": 1, "split": "train", "loss": 1.0}
    data = reports.content([replace(run, records=(record,))], ReportOptions(workdir=("a",), lines=0), print)
    text = reports.page({**data, "attention": [{"name": hostile}]}, when="today")
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert json.loads(re.search(r'id="attention-data">(.*?)</script>', text)[1]) == [{"name": hostile}]
    assert [row["run"] for row in values(json.loads(re.search(r"data-chart='(.*?)'", text)[1]))] == [hostile]


def test_lines_are_spread_and_sentences_go_from_short_to_long():
    assert spread(1000, 4) == [0, 250, 500, 750]
    assert spread(3, 10) == [0, 1, 2]
    assert spread(0, 10) == []
    assert chosen([9, 1, 3, 80, 5], 2, longest=40) == [2, 4]
    assert chosen([1, 90], 2, longest=40) == []
