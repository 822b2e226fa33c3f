"""The command: what the page holds is what the files say, workdirs stay as they were, mistakes are one sentence."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from convs2s_jax.commands import report as command
from convs2s_jax.core import packages
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS
from convs2s_jax.data import parallel_text
from convs2s_jax.metrics import scoring
from convs2s_jax.reporting import document
from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.report import comparable, report
from convs2s_jax.reporting.translations import Translations, chosen, spread
from convs2s_jax.training.run import run_folder
from convs2s_jax.translation import lines
from convs2s_jax.translation.translator import load
from tests import stores, tiny
from tests.processes import called
from tests.workdirs import unpacked

bucket = stores.bucket


def made(*workdirs, output, **others):
    """The data inside a page, without the scripts of charts, and what was told."""
    told = []
    options = ReportOptions(workdir=tuple(map(str, workdirs)), output=str(output), resamples=20, **others)
    path = Path(report(options, when="today", tell=told.append, scripts=lambda: ""))
    return inside(path.read_text()), told


def inside(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def test_the_page_holds_what_the_files_and_the_decoder_say(tmp_path):
    one = unpacked("convs2s", tmp_path)
    two = shutil.copytree(one, tmp_path / "two")
    before = snapshot(one)
    data, told = made(one, two, output=tmp_path / "out", lines=4, attention=2)
    assert [line.partition(" ")[2] for line in told[:2]] == ["translating 4 of 8 lines of the test split"] * 2
    assert [(run["source"], run["target"]) for run in data["runs"]] == [("en", "de")] * 2
    curves = {chart["field"]: chart["spec"] for chart in data["curves"]["charts"]}
    for field in ("loss", "perplexity", "grad_norm", "tokens_per_second"):
        [rows] = (
            curves[field]["datasets"].values() if "datasets" in curves[field] else [curves[field]["data"]["values"]]
        )
        expected = [(r["split"], r["step"], r[field]) for r in tiny.metrics(one) if r.get(field) is not None]
        for run in ("convs2s", "two"):
            found = [(row["split"], row["step"], row["value"]) for row in rows if row["run"] == run]
            assert sorted(found) == sorted(expected)
    translator = load(one, tell=print)
    sources = [line["source"] for line in data["translations"]["lines"]]
    results = lines.translate(translator, lines.TextRequest(translator.cfg.search, sources))
    texts = ["".join(text for text, _ in line["runs"][0]["reference"]) for line in data["translations"]["lines"]]
    assert texts == [result.best.text for result in results]
    assert [line["runs"][0]["score"] for line in data["translations"]["lines"]] == pytest.approx(
        [result.best.score for result in results], rel=1e-4
    )
    references = [line["reference"] for line in data["translations"]["lines"]]
    corpus = parallel_text.read(translator.cfg.data, "test")
    numbers = [line["line"] - 1 for line in data["translations"]["lines"]]
    assert (sources, references) == ([corpus.src[i] for i in numbers], [corpus.tgt[i] for i in numbers])
    expected = scoring.score(texts, [references])
    measured = {(row["run"], row["metric"]): row for row in data["scores"]["measured"]}
    assert measured["two", "BLEU"]["score"] == pytest.approx(expected["bleu"].value)
    assert measured["two", "chrF2"]["score"] == pytest.approx(expected["chrf"].value)
    assert all(row["p"] == 1 for (run, _), row in measured.items() if run == "two")
    assert {one["run"] for one in data["attention"]} == {"convs2s", "two"}
    src, tgt = translator.vocabularies.src, translator.vocabularies.tgt
    for one_of in data["attention"]:
        place = numbers.index(one_of["line"] - 1)
        for side, vocabulary, text in (("source", src, sources[place]), ("target", tgt, texts[place])):
            assert one_of[side] == [vocabulary.token(i) for i in (*vocabulary.encode([text])[0], EOS)]
        for layer in one_of["layers"]:
            assert len(layer["weights"]) == len(one_of["target"])
            assert all(len(row) == len(one_of["source"]) for row in layer["weights"])
            assert all(sum(row) == pytest.approx(1, abs=0.02) for row in layer["weights"])
    again, told = made(one, two, output=tmp_path / "out", lines=4, attention=2)
    assert all(": reusing the translations in " in line for line in told[:2])
    assert again == data
    assert snapshot(one) == before
    for path in (tmp_path / "out" / "translations").iterdir():
        path.write_text(path.read_text().replace("1", "2", 1))
    again, told = made(one, two, output=tmp_path / "out", lines=4, attention=2)
    assert all("translating 4" in line for line in told[:2])
    assert again == data


@pytest.mark.drill
def test_a_run_in_a_store_has_the_page_of_a_local_one(bucket, tmp_path):
    here = unpacked("convs2s", tmp_path)
    shutil.copytree(here, bucket / "convs2s")
    expected, told = made(here, output=tmp_path / "out", lines=4, attention=1)
    found, again = made("gs://bucket/convs2s", output=tmp_path / "out", lines=4, attention=1)
    assert "translating 4 of 8 lines" in told[0]
    assert "reusing the translations" in again[0]
    text = json.dumps(found)
    assert text == json.dumps(expected).replace(str(here), "gs://bucket/convs2s")
    for first in ("translating 4 of 8 lines", "reusing the translations"):
        again.clear()
        options = ReportOptions(workdir=(str(here),), output="gs://bucket/out/", resamples=20, lines=4, attention=1)
        assert report(options, when="today", tell=again.append, scripts=lambda: "") == "gs://bucket/out/index.html"
        assert first in again[0]
        assert inside((bucket / "out" / "index.html").read_text()) == expected
    (bucket / "convs2s" / "metrics.jsonl").unlink()
    found, _ = made("gs://bucket/convs2s", output=tmp_path / "out", lines=0)
    assert "gs://bucket/convs2s/metrics.jsonl has no reports yet" in json.dumps(found)


def test_only_runs_with_the_same_lines_are_compared():
    one = Translations((0,), ("a",), ("b",), (2,), ("c",), (-1.0,), 1, (4,), "beam 1")
    other = replace(one, references=("d",))
    absent = []
    assert list(comparable({"x": one, "y": other, "z": replace(one, texts=("e",))}, absent)) == ["x", "z"]
    assert absent == ["y is omitted: its lines differ from those of x; create a separate report for it."]
    assert comparable({}, absent) == {}


def test_what_a_run_lacks_is_a_sentence(tmp_path):
    classifier = {"kind": "classifier", "embedding_dim": 8, "features": {"kind": "kim", "widths": [3], "maps": 4}}
    for name, model in (("kinds", classifier), ("new", None)):
        (tmp_path / name).mkdir()
        data = {"data__corpus": "cldr_kinds"} if model else {}
        values = {"model": model, **data} if model else data
        run_folder.write_config(tmp_path / name, tiny.config(**values))
    data, told = made(tmp_path / "kinds", tmp_path / "new", output=tmp_path / "out")
    assert data["scores"] is None
    assert data["absent"]["scores"] == [
        "kinds is omitted: model.kind is 'classifier', which does not translate; use a run of an encoder_decoder.",
        "new is omitted: it has no checkpoint yet.",
    ]
    assert "kinds is omitted: it is a classifier." in data["absent"]["fields"]
    assert data["curves"]["charts"] == []
    assert any("metrics.jsonl has no reports yet" in line for line in told)
    assert "A model: a classifier with features of kind kim." in data["runs"][0]["paragraph"]
    quick, _ = made(tmp_path / "new", output=tmp_path / "out", lines=0)
    assert quick["absent"]["scores"] == ["Nothing was translated, since --lines is 0."]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "report: --workdir is missing; specify a run, or several to compare, as in --workdir=runs/a,runs/b"),
        (["--workdir={tmp}/no"], "--workdir={tmp}/no: there is no such folder"),
        (["--workdir={tmp}"], "contains no config.json: no training was started there"),
        (["--workdir={tmp}", "--output={tmp}/page"], "is inside --workdir={tmp}, which a report does not modify"),
        (["--workdir={tmp}/no", "--resamples=1"], "--resamples is 1; use 2 or more"),
        (["--workdir={tmp}/no", "--config.model.dropout=1"], "only --config.search.* can be set"),
        (["--workdir={tmp}/no", "--output="], "--output is empty; specify a folder"),
        (["--workdir={tmp}/no", "--lm_weight=0"], "--lm_weight: a report translates without a language model; remove"),
        (
            ["--workdir={tmp}/no", "--lm_weight=0.2"],
            "--lm_weight: a report translates without a language model; remove",
        ),
        (["--workdri=a"], "--workdri is not a flag of this command; did you mean 'workdir'?"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, arguments, sentence):
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    ended = called(lambda rest: command.console(["report", *rest]), *given)
    assert ended.returncode == 2
    assert sentence.format(tmp=tmp_path) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_fits_no_model_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "a").mkdir()
    run_folder.write_config(tmp_path / "a", tiny.config())
    with pytest.raises(UserError, match=r"--beam_size is 0: a search keeps at least one hypothesis"):
        made(tmp_path / "a", output=tmp_path / "out", search={"beam_size": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_missing_extra_and_a_file_in_the_way_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda *_: None)
    ended = called(
        lambda rest: command.console(["report", *rest]), f"--workdir={tmp_path}", f"--output={tmp_path}-page"
    )
    assert "a report needs altair, vl_convert: pip install '.[report]'" in ended.stderr
    monkeypatch.undo()
    run_folder.write_config(tmp_path, tiny.config())
    (tmp_path.parent / "file").write_text("")
    with pytest.raises(UserError, match="file cannot be written: File exists; choose another folder"):
        made(tmp_path, output=tmp_path.parent / "file")


def test_no_text_of_a_corpus_ends_its_place_in_the_page():
    hostile = "</script><script>alert(1)</script> <!-- data --> \u2028 & ' \" <!-- report -->"
    text = document.embedded({"text": hostile})
    assert "<" not in text
    assert json.loads(text) == {"text": hostile}
    assert "</script" not in document.script('x = "</script><!-- a -->"')


def test_lines_are_spread_and_sentences_go_from_short_to_long():
    assert spread(1000, 4) == [0, 250, 500, 750]
    assert spread(3, 10) == [0, 1, 2]
    assert spread(0, 10) == []
    assert chosen([9, 1, 3, 80, 5], 2, longest=40) == [2, 4]
    assert chosen([1, 90], 2, longest=40) == []
