"""The report in a real browser: what it draws is what the files say, by pointer and by keyboard, wide and narrow.

`make browser` installs one.
"""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.report import report
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import metrics_file
from tests import tiny

pytestmark = [pytest.mark.drill, pytest.mark.filterwarnings("ignore")]
COLOURS = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number), style = (e) => getComputedStyle(e);
  const clear = (e) => style(e).backgroundColor === 'rgba(0, 0, 0, 0)';
  const behind = (e) => (clear(e) && e.parentElement ? behind(e.parentElement) : e);
  const kinds = 'h1, h2, h3, p, td, th, a, button, dt, dd, label, summary, svg text';
  return [...document.querySelectorAll(kinds)].map((e) => [
    numbers(e.tagName === 'text' ? style(e).fill : style(e).color), numbers(style(behind(e)).backgroundColor),
    e.outerHTML.slice(0, 80)]);
}"""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of tiny models and the page about them."""
    folder = tmp_path_factory.mktemp("report")
    for seed in (1, 2):
        cfg = tiny.config(
            seed=seed,
            data__batch__shapes=2,
            training__validate_bleu=True,
            training__validate_every=4,
            training__peak_flops=1e12,
            training__max_steps=12,
            data__cldr={"train": 300, "valid": 12, "test": 40},
        )
        train(cfg, folder / f"seed-{seed}")
    workdirs = tuple(str(folder / f"seed-{seed}") for seed in (1, 2))
    options = ReportOptions(workdir=workdirs, output=str(folder / "out"), resamples=50)
    return folder, Path(report(options, when="today", tell=print))


@pytest.fixture(scope="module")
def browser():
    browsers = pytest.importorskip("playwright.sync_api", reason="no Playwright: make browser installs it")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: make browser installs it")
    with browsers.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@pytest.fixture
def opened(made, browser):
    """A function that opens the page; at the end nothing was said on the console and nothing was asked of a network."""
    said, pages = [], []

    def open_page(path=made[1], **options):
        page = browser.new_page(**options)
        pages.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.evaluate("window.drawn")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []


def records(made, seed):
    return tiny.metrics(made[0] / f"seed-{seed}")


def labels(page, title):
    """What a chart's points say to a screen reader, as {name: text}."""
    card = page.locator(".chart", has=page.locator("h3", has_text=re.compile(f"^{title}$")))
    texts = card.locator("[aria-roledescription=point]").evaluate_all(
        "all => all.map(p => p.getAttribute('aria-label'))"
    )
    return [dict(part.split(": ", 1) for part in text.split("; ")) for text in texts]


def test_charts_draw_the_numbers_of_metrics_jsonl(opened, made):
    page = opened()
    for title, field, scale in (
        ("Loss", "loss", 1),
        ("Perplexity", "perplexity", 1),
        ("BLEU", "bleu", 1),
        ("Learning rate", "learning_rate", 1),
        ("Gradient norm", "grad_norm", 1),
        ("Throughput", "tokens_per_second", 1),
        ("Model FLOPs utilisation", "mfu", 100),
    ):
        found = sorted(
            (p["run"], p["split"], int(p["step"]), float(p["value"].replace("−", "-"))) for p in labels(page, title)
        )
        expected = sorted(
            (f"seed-{seed}", record["split"], record["step"], record[field] * scale)
            for seed in (1, 2)
            for record in records(made, seed)
            if record.get(field) is not None
        )
        assert [point[:3] for point in found] == [point[:3] for point in expected], title
        np.testing.assert_allclose([p[3] for p in found], [p[3] for p in expected], rtol=1e-12, err_msg=title)


def test_the_pointer_shows_value_step_and_run(opened, made):
    page = opened()
    card = page.locator(".chart").first
    point = card.locator("[aria-roledescription=point]").first
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2 + 1)
    page.wait_for_selector("#vg-tooltip-element.visible")
    text = page.inner_text("#vg-tooltip-element")
    shown = dict(re.findall(r"(\w+)\s+(\S+)", text))
    assert set(shown) == {"value", "step", "run", "split"}
    loss = {(f"seed-{seed}", r["split"], r["step"]): r["loss"] for seed in (1, 2) for r in records(made, seed)}
    assert shown["value"] == f"{loss[shown['run'], shown['split'], int(shown['step'])]:.6g}"


def test_runs_can_be_hidden_and_scales_changed_by_keyboard(opened):
    page = opened()
    both = len(labels(page, "Loss"))
    page.locator("#legend button", has_text="seed-2").focus()
    page.keyboard.press("Enter")
    count = "document.querySelector('.chart').querySelectorAll('[aria-roledescription=point]').length"
    page.wait_for_function(f"{count} < {both}")
    assert {point["run"] for point in labels(page, "Loss")} == {"seed-1"}
    button = page.get_by_role("button", name="Loss: logarithmic scale")
    heights = "all => all.map(p => p.getBoundingClientRect().y)"
    before = page.locator(".chart").first.locator("[aria-roledescription=point]").evaluate_all(heights)
    button.focus()
    page.keyboard.press("Space")
    page.evaluate("window.drawn")
    assert button.get_attribute("aria-pressed") == "true"
    after = page.locator(".chart").first.locator("[aria-roledescription=point]").evaluate_all(heights)
    assert len(after) == len(before)
    assert not np.allclose(after, before)
    assert {point["run"] for point in labels(page, "Loss")} == {"seed-1"}  # a new drawing hides what was hidden
    summary = page.locator("#curves summary").first
    summary.focus()
    page.keyboard.press("Enter")
    rows = page.locator("#curves .values").first.locator("tbody tr")
    rows.nth(both - 1).wait_for()  # the table is made after the key, when the browser says that it is open
    assert rows.count() == both


def test_translations_are_sorted_searched_and_marked(opened, made):
    page = opened()
    data = json.loads(page.evaluate("document.getElementById('data').textContent"))
    every = data["translations"]["lines"]
    while page.locator("#more").is_visible():
        page.click("#more")
    assert page.locator("#translation-table tbody tr").count() == len(every)

    def column(title):
        cells = page.locator(f"#translation-table td[data-label='{title}']").all_inner_texts()
        return [float(cell.replace("–", "nan")) for cell in cells]

    for title, value in (
        ("Score", lambda line: line["runs"][0]["score"]),
        ("chrF", lambda line: line["runs"][0]["chrf"]),
        ("Difference", lambda line: line["runs"][1]["chrf"] - line["runs"][0]["chrf"]),
        ("Length", lambda line: line["length"]),
    ):
        button = page.locator("#translation-table thead").get_by_role("button", name=title)
        button.focus()
        page.keyboard.press("Enter")
        head = button.locator("xpath=..")
        first = head.get_attribute("aria-sort")
        for _ in range(2):
            down = head.get_attribute("aria-sort") == "descending"
            found, expected = column(title), sorted(map(value, every), reverse=down)
            np.testing.assert_allclose(found, expected, atol=0.0501)
            page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == first
    page.fill("#find", every[0]["source"])
    assert page.locator("#translation-table tbody tr").count() >= 1
    assert every[0]["source"] in page.inner_text("#translation-table tbody")
    assert "of 1 lines" in page.inner_text("#found") or page.locator("#translation-table tbody tr").count() > 1
    own = every[0]["runs"]
    for choice, sides in (
        ("reference", (own[0]["reference"], own[1]["reference"])),
        ("run", (own[1]["other"], own[1]["first"])),
    ):
        page.select_option("#mark", choice)
        row = page.locator("#translation-table tbody tr").filter(has_text=every[0]["source"]).first
        marks = row.locator("mark").evaluate_all("all => all.map(mark => mark.textContent)")
        assert marks == [text for pieces in sides for text, differs in pieces if differs]
    page.fill("#find", "no such words")
    assert page.inner_text("#found") == "0 of 0 lines"
    page.evaluate("byId('pair-field').hidden = true")  # as in a report of one run
    assert not page.locator("#pair-field").is_visible()


def test_attention_lights_up_by_pointer_and_keyboard(opened):
    page = opened()
    seen = json.loads(page.evaluate("document.getElementById('data').textContent"))["attention"]
    own = [one for one in seen if one["run"] == "seed-2"]
    page.select_option("#attention-run", "seed-2")
    page.select_option("#attention-line", "1")
    for number, layer in enumerate(own[1]["layers"]):
        page.locator("#layers button").nth(number).press("Enter")
        assert page.locator("#layers button[aria-pressed=true]").inner_text() == layer["name"]
        titles = page.locator("#matrix td[title]").evaluate_all("cells => cells.map(cell => cell.title)")
        weights = [float(title.rpartition(": ")[2]) for title in titles]
        np.testing.assert_allclose(weights, np.ravel(layer["weights"]), atol=0.0051)
    weights = own[1]["layers"][-1]["weights"]
    lit = "all => all.map(word => word.style.backgroundColor !== '')"
    page.locator("#target-words span").nth(1).focus()
    assert page.locator("#source-words span").evaluate_all(lit) == [w > 0 for w in weights[1]]
    assert page.locator("#matrix td.here").count() == len(weights[1])
    page.locator("#matrix tbody tr").nth(1).locator("td").nth(0).hover()
    assert page.locator("#source-words span.here").count() == 1
    assert page.locator("#target-words span.here").count() == 1
    page.mouse.move(0, 0)
    assert page.locator("#matrix td.here").count() == 0


def test_samples_scores_and_fields_are_shown(opened, made):
    page = opened()
    folder = made[0] / "seed-1" / "samples"
    samples = {
        int(path.stem): [json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()
    }
    page.select_option("#sample-choice", "3")
    rows = (
        page.locator("#sample-table tbody tr")
        .filter(has_text="seed-1")
        .evaluate_all("rows => rows.map(row => [row.cells[0].textContent, row.cells[2].textContent])")
    )
    shown = [(*map(int, steps.replace(",", "").split(" – ")), text) for steps, text in rows]
    for step, lines in samples.items():
        assert [row[-1] for row in shown if row[0] <= step <= row[-2]] == [lines[3]["hypothesis"]]
    data = json.loads(page.evaluate("document.getElementById('data').textContent"))
    found = page.locator("#score-table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    expected = [
        [r["metric"], r["run"], f"{r['score']:.2f}", f"{r['low']:.2f} – {r['high']:.2f}"]
        for r in data["scores"]["measured"]
    ]
    assert [row[:4] for row in found] == expected
    assert {row[0] for row in found} == {"BLEU", "chrF2", "chrF2++", "TER"}
    assert page.locator("#field-list .chart").count() == 2
    assert page.locator("#plan-list table").count() >= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE], ids=["wide", "phone"])
def test_it_is_readable_in_both_schemes_and_on_a_phone(opened, tmp_path, scheme, size):
    page = opened(viewport=size, color_scheme=scheme)
    sentences = page.locator("#attention-line option").count()
    page.select_option("#attention-line", str(sentences - 1))  # the longest, whose matrix is wider than a phone
    assert page.evaluate("document.getElementById('matrix').scrollWidth") > PHONE["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    for ink, paper, what in page.evaluate(COLOURS):
        if (len(ink) > 3 and ink[3] < 1) or (len(paper) > 3 and paper[3] < 1):
            continue  # cells of a matrix and what is hidden
        assert _contrast(ink, paper) >= 4.5, (what, ink, paper)
    other = {"light": "Dark", "dark": "Light"}[scheme]
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name=other, exact=True).press("Enter")
    page.evaluate("window.drawn")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.get_by_role("button", name="Auto").press("Enter")
    page.evaluate("window.drawn")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before
    page.screenshot(path=tmp_path / f"report-{scheme}-{size['width']}.png", full_page=True)


def test_a_page_about_runs_that_lack_everything_says_so(opened, tmp_path):
    language_model = {
        "encoder": {"kind": "none"},
        "decoder": {**tiny.VALUES["model"]["decoder"], "attention_layers": []},
    }
    configs = {
        "new": tiny.config(),
        "lm": tiny.config(data__src="", model={**tiny.VALUES["model"], **language_model}),
        "kinds": tiny.config(
            data__corpus="cldr_kinds",
            model={"kind": "classifier", "embedding_dim": 8, "features": {"kind": "kim", "widths": [3], "maps": 4}},
        ),
    }
    for name, cfg in configs.items():
        (tmp_path / name).mkdir()
        run_folder.write_config(tmp_path / name, cfg)
    workdirs = tuple(str(tmp_path / name) for name in configs)
    path = Path(report(ReportOptions(workdir=workdirs, output=str(tmp_path / "out")), when="today", tell=print))
    page = opened(path)
    told = page.locator(".absent").all_inner_texts()
    assert "No run has reported numbers yet." in told
    assert "new is omitted: it has no checkpoint yet." in told
    assert "lm is omitted: it is a language model, which does not translate." in told
    assert "kinds is omitted: it is a classifier." in told
    assert page.locator("#runs article").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_texts_run_in_their_own_direction_and_name_their_language(opened, tmp_path):
    kim = {"kind": "classifier", "embedding_dim": 8, "features": {"kind": "kim", "widths": [3], "maps": 4}}
    configs = {
        "he": tiny.config(data__src="en", data__tgt="he_IL"),
        "kinds": tiny.config(data__src="ar", data__tgt="labels", data__corpus="cldr_kinds", model=kim),
    }
    samples = {"he": ("good (12).", "טוב, 12!", "טוב."), "kinds": ("שלום, world!", "ידידות", "friend")}
    scores = {"he": {}, "kinds": {"f1/ידידות": 25.0, "f1/friend": 12.5}}
    for name, cfg in configs.items():
        (tmp_path / name / "samples").mkdir(parents=True)
        run_folder.write_config(tmp_path / name, cfg)
        sample = dict(zip(("source", "hypothesis", "reference"), samples[name], strict=True))
        (tmp_path / name / "samples" / "4.jsonl").write_text(json.dumps(sample))
        test = {"step": 4, "epoch": 1, "split": "test", "loss": 2.0, **scores[name]}
        (tmp_path / name / "metrics.jsonl").write_text(metrics_file.line(test))
    workdirs = tuple(str(tmp_path / name) for name in configs)
    page = opened(Path(report(ReportOptions(workdir=workdirs, output=str(tmp_path / "out")), when="today", tell=print)))
    way = "e => [getComputedStyle(e).direction, e.lang, e.textContent]"
    for i, (source, outcome, right) in enumerate((("ltr", "rtl", "rtl"), ("rtl", "rtl", "ltr"))):
        given, hypothesis, reference = samples[["he", "kinds"][i]]
        code = ["he-IL", ""][i]
        page.select_option("#sample-choice", str(i))
        assert page.locator("#sample-choice option").nth(i).evaluate(way) == [source, "", given]
        assert page.locator("#sample-table tbody td:last-child > *").evaluate(way) == [outcome, code, hypothesis]
        assert page.locator("#sample-reference bdi").evaluate(way) == [right, code, reference]
    assert page.locator("#sample-table thead th").last.inner_text() == "Translation or Label"
    table = page.locator("#label-table tbody tr")
    assert table.all_inner_texts() == ["friend\t12.50", "ידידות\t25.00"]
    assert table.locator("bdi").evaluate_all("all => all.map(e => getComputedStyle(e).direction)") == ["ltr", "rtl"]
    drawn = page.evaluate(
        """() => {
          const places = {source: element("p"), target: element("p"), matrix: element("table")};
          document.body.append(...Object.values(places));
          drawAttention(places, ["good", "day"], ["טוב", "!"], [[1, 0], [0, 1]]);
          const found = [places.source, places.target, ...places.matrix.querySelectorAll("th")];
          return [found.map((e) => getComputedStyle(e).direction), places.matrix.querySelector("td[title]").title];
        }"""
    )
    assert drawn == [["ltr", "rtl", "ltr", "ltr", "rtl", "ltr"], "⁨טוב⁩ → ⁨good⁩: 1.00"]


def _contrast(a, b):
    """Ratio of the luminances, as WCAG 2 defines it."""

    def luminance(rgb):
        parts = [c / 255 / 12.92 if c <= 10 else math.pow((c / 255 + 0.055) / 1.055, 2.4) for c in rgb[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
