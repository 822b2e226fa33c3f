"""The report in a real browser: what it draws, sorts and finds. `make browser` installs one."""

import shutil
from pathlib import Path

import pytest

from convs2s_jax.reporting.options import ReportOptions
from convs2s_jax.reporting.report import report
from tests.workdirs import unpacked


@pytest.fixture
def page(tmp_path):
    """The page about two runs; nothing is said on its console, and nothing asked of a network."""
    browsers = pytest.importorskip("playwright.sync_api", reason="no Playwright: make browser installs it")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: make browser installs it")
    one = unpacked("convs2s", tmp_path)
    two = shutil.copytree(one, tmp_path / "two")
    options = ReportOptions(workdir=(str(one), str(two)), output=str(tmp_path / "out"))
    address, said = Path(report(options, when="today", tell=print)).as_uri(), []
    with browsers.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != address else None)
        page.goto(address)
        page.evaluate("window.drawn.then(() => true)")
        yield page
        browser.close()
    assert said == []


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")
def test_charts_are_drawn_and_a_table_is_sorted_and_searched(page):
    assert page.locator("#curves svg").count() == page.locator("#curves .card").count() > 0
    rows = page.locator("#lines tbody tr")
    texts = rows.locator("td:nth-child(2)").all_inner_texts()
    for head, name in enumerate(("Line", "Texts", "Length", "chrF convs2s", "Score convs2s", "chrF two"), start=1):
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
