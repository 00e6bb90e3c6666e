"""Pages in a real browser: whatever rows hold, a cell says just that, and nothing runs or is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from millrace.pipelines.commands.view_looks import Filter, Page
from millrace.pipelines.pages.html import page, policy
from millrace.pipelines.pages.shown_rows import shown_row
from millrace.pipelines.pages.texts import Clipped, clipped
from tests.pipelines.pages.hostile import TEXTS
from tests.pipelines.pages.opened import address_of, opened
from tests.servers.chromium import browser

TEXT = st.sampled_from(TEXTS) | st.text(st.characters(codec=None), max_size=40)
VALUE = """nodes => nodes.map(node => [...node.childNodes]
    .filter(child => !(child.classList && child.classList.contains("dropped")))
    .map(child => child.textContent).join(""))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def html(rows: list[tuple[dict[str, Any], str]]) -> str:
    shown = [shown_row(row, Clipped(prompt)) for row, prompt in rows]
    view = Page("a title", "said", sorted({row.facts.kind for row in shown}), Filter(), True, shown)
    return page("rows.html", view=view, title=view.title, policy=policy())


def cells(chromium: Browser, file: Path, *selectors: str) -> list[list[str]]:
    """The texts of cells, for each selector."""
    with opened(chromium, address_of(file)) as found:
        assert found.is_clean(address_of(file))
        return [list(found.page.eval_on_selector_all(selector, VALUE)) for selector in selectors]


@settings(max_examples=4)  # a page each, which takes a second
@given(texts=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=4, max_size=12))
def test_a_cell_has_the_text_of_its_value_and_no_script_runs(
    chromium: Browser, tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str, str]]
) -> None:
    rows = [({"id": name, "text": text, "finish_reason": name}, prompt) for name, text, prompt in texts]
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_bytes(html(rows).encode())
    answers, names, prompts = cells(chromium, file, "article .answer", "article h3", "article .prompt")
    assert answers == [clipped(text).text for _, text, _ in texts]
    assert names == [clipped(name).text for name, _, _ in texts]
    assert prompts == [clipped(prompt).text for _, _, prompt in texts if prompt]


def test_every_hostile_text_is_harmless_wherever_it_stands(chromium: Browser, tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        (
            {
                "id": text,
                text: text,
                "list": [text],
                "confidences": {text: -0.1},
                "spans": {text: {"start": 0, "end": 5}},
            },
            text,
        )
        for text in TEXTS
    ]
    rows += [({"id": text, "error": text, "reason": text, "row": {text: text}}, text) for text in TEXTS]
    file = tmp_path / "page.html"
    file.write_bytes(html(rows).encode())
    why, values, prompts = cells(chromium, file, "article .why", "article td.value", "article .prompt")
    shown = [clipped(text).text for text in TEXTS]
    assert why == prompts[: len(TEXTS)] == shown
    assert values == [text for text in shown for _ in range(2)]


def test_a_value_of_ten_megabytes_is_clipped(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(html([({"id": "a", "text": "<b>" * 3_500_000, "finish_reason": "stop"}, "p" * 10_000_000)]))
    assert file.stat().st_size < 100_000
    assert cells(chromium, file, "article .answer") == [[("<b>" * 1000)[:2000]]]


def test_filters_let_rows_through(chromium: Browser, tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"id": "a", "x": 1, "confidences": {"x": -0.01}}, "p"),
        ({"id": "b", "x": 1, "confidences": {"x": -2.0}}, "p"),
        ({"id": "c", "error": "InvalidRequest", "reason": "r"}, "p"),
    ]
    file = tmp_path / "page.html"
    file.write_text(html(rows))
    with opened(chromium, address_of(file)) as found:
        assert found.shown_rows() == 3
        found.page.get_by_label("failed only").check()
        assert found.shown_rows() == 1
        assert found.page.locator("output").inner_text() == "1 of 3 rows"
        found.page.get_by_label("failed only").uncheck()
        found.page.get_by_label("confidence below").fill("50")
        assert found.page.locator("article.row:visible h3").inner_text() == "b"
        found.page.get_by_label("confidence below").fill("")
        found.page.get_by_label("ended by").select_option("InvalidRequest")
        assert found.page.locator("article.row:visible h3").inner_text() == "c"
        assert found.is_clean(address_of(file))


def test_the_policy_forbids_what_is_not_the_pages_own(chromium: Browser, tmp_path: Path) -> None:
    """The last line of defence: were an element to slip in, it would not run."""
    slipped = "<script>document.title = 'ran'</script><img src='https://example.invalid/x.png'><p onclick='alert(1)'>p"
    file = tmp_path / "page.html"
    file.write_text(html([({"id": "a", "text": "x", "finish_reason": "stop"}, "p")]).replace("</main>", slipped))
    with opened(chromium, address_of(file)) as found:
        found.page.locator("p").last.click()
        assert found.page.title() == "a title"
        assert len(found.errors) >= 2


def test_a_page_has_what_screen_readers_need() -> None:
    found = html([({"id": "a", "text": "x", "finish_reason": "stop"}, "p")])
    assert '<html lang="en">' in found
    assert re.search(r"<title>\S", found)
    assert len(re.findall("<h1", found)) == 1
    assert not re.search(r"https?://", found)
