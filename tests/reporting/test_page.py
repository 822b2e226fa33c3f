"""The report in a real browser: what it draws, sorts and finds is what the files say. `make browser` installs one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.report import report
from convs2s_jax.training.run.loop import train
from tests import tiny

pytestmark = [pytest.mark.drill, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of tiny models and the page about them."""
    folder = tmp_path_factory.mktemp("report")
    scored = {"training__validate_bleu": True, "training__validate_every": 4, "training__max_steps": 12}
    for seed in (1, 2):
        cfg = tiny.config(seed=seed, **scored, data__cldr={"train": 300, "valid": 12, "test": 40})
        train(cfg, folder / f"seed-{seed}")
    workdirs = tuple(str(folder / f"seed-{seed}") for seed in (1, 2))
    options = ReportOptions(workdir=workdirs, output=str(folder / "out"))
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

    def open_page(**options):
        page = browser.new_page(**options)
        pages.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != made[1].as_uri() else None)
        page.goto(made[1].as_uri())
        page.evaluate("window.drawn.then(() => true)")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == []


def test_a_table_is_sorted_and_searched(opened):
    page = opened()
    rows = page.locator("#lines tbody tr")
    texts = rows.locator("td:nth-child(2)").all_inner_texts()
    for head, name in enumerate(("Line", "Texts", "Length", "chrF seed-1", "Score seed-1", "chrF seed-2"), start=1):
        button = page.locator("#lines thead").get_by_role("button", name=name)
        for order in ("descending", "ascending"):
            button.press("Enter")
            assert button.locator("xpath=..").get_attribute("aria-sort") == order
            cells = rows.locator(f"td:nth-child({head})").all_inner_texts()
            if name != "Texts":
                assert [*map(float, cells)] == sorted(map(float, cells), reverse=order == "descending")
    wanted = texts[3].split("\n")[1]
    page.fill("#find", wanted.upper())
    assert rows.locator("visible=true").count() == sum(wanted.lower() in text.lower() for text in texts)


def test_attention_lights_up_by_pointer_and_keyboard(opened):
    page = opened()
    seen = json.loads(page.locator("#attention-data").text_content())
    page.select_option("#sentence", str(len(seen) - 1))
    for name, weights in seen[-1]["layers"].items():
        page.select_option("#layer", name)
        titles = page.locator("#matrix td[title]").evaluate_all("cells => cells.map(cell => cell.title)")
        shown = [float(title.rpartition(": ")[2]) for title in titles]
        np.testing.assert_allclose(shown, np.ravel(weights), atol=0.0051)
    lit = "all => all.map(word => word.style.backgroundColor !== '')"
    page.locator("#target-words span").nth(1).focus()
    assert page.locator("#source-words span").evaluate_all(lit) == [w > 0 for w in weights[1]]
    assert page.locator("#matrix td.here").count() == len(weights[1])
    page.locator("#matrix tbody tr").nth(1).locator("td").nth(0).hover()
    assert page.locator("#source-words span.here").count() == page.locator("#target-words span.here").count() == 1
    page.mouse.move(0, 0)
    assert page.locator("#matrix td.here").count() == 0
