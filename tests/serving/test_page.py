"""The page for people, in a real browser: what it shows is what the server answers. `make browser` installs one."""

import re
import shutil

import pytest

from tests.serving.test_server import Running
from tests.workdirs import unpacked

TEXT = "5 kilowatts\nat 12:30"


@pytest.fixture
def page(tmp_path):
    browsers = pytest.importorskip("playwright.sync_api", reason="no Playwright: make browser installs it")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: make browser installs it")
    server = Running(unpacked("convs2s", tmp_path), "--max_tokens=32", "--batch_size=8", "--beam_sizes=2,1")
    with browsers.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url) if server.address not in request.url else None)
        page.server = server
        page.goto(server.address)
        yield page
        browser.close()
    server.end()


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")
def test_the_page_shows_what_the_server_answers(page, tmp_path):
    page.fill("#source", TEXT)
    page.wait_for_selector("#nbest button")
    answer = page.server.ask(lines=TEXT.split("\n"), nbest=2, attention=True)["translations"]
    assert page.inner_text("#target") == "\n".join(one["text"] for one in answer)
    for i, line in enumerate(answer):
        page.select_option("#line", str(i))
        found = page.locator("#nbest button").all_inner_texts()
        texts = [re.sub(r"\s+", " ", f"{one['text']} {one['score']:.3f}") for one in line["hypotheses"]]
        assert [re.sub(r"\s+", " ", text) for text in found] == texts
        weights = line["hypotheses"][0]["attention"]
        expected = [f"{w:.2f}" for row in weights for w in row]
        for _ in range(200):  # it is asked for once the line is shown
            titles = page.eval_on_selector_all("#matrix td[title]", "cells => cells.map(cell => cell.title)")
            if [title.rpartition(": ")[2] for title in titles] == expected:
                break
            page.wait_for_timeout(50)
        assert [title.rpartition(": ")[2] for title in titles] == expected
    assert [page.get_attribute(f"#{id}", "lang") for id in ("source", "target", "target-words")] == ["en", "de", "de"]
    assert page.locator("#nbest button span[dir=auto][lang=de]").count() == 2
    word = page.locator("#target-words span").first
    word.hover()
    lit = page.eval_on_selector_all("#source-words span", "words => words.map(word => word.style.backgroundColor)")
    assert [bool(color) for color in lit] == [w > 0 for w in weights[0]]
    page.keyboard.press("Tab")
    page.select_option("#beam", "1")
    page.wait_for_selector("#nbest li:only-child")
    greedy = page.server.ask(lines=TEXT.split("\n"), beam_size=1)["translations"]
    assert page.inner_text("#target") == "\n".join(one["text"] for one in greedy)
    page.fill("#source", "5 שקל")
    line = page.locator("#line option").filter(has_text="שקל")
    line.wait_for(state="attached")
    assert line.text_content() == "1: \u20685 שקל\u2069"
    assert page.eval_on_selector("#source", "e => getComputedStyle(e).direction") == "rtl"
    page.fill("#source", "1 2 3 4 5 6 7 8 9 " * 5)
    page.wait_for_selector("#problem:not([hidden])")
    assert "this server accepts at most 31; split it" in page.inner_text("#problem")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    refused = [text for text in page.said if "422" in text]  # the browser reports the refusal itself
    assert page.said == refused
