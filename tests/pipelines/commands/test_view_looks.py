from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.view_looks import PAGE, Filter, Look
from millrace.pipelines.pages.found_prompts import Input
from tests.json_lines import write_rows
from tests.pipelines.commands.view_outputs import csv_lines, lines, parquet


def ids(look: Look, query: str) -> list[str]:
    return [row.id.text for row in look.page(query).rows]


@pytest.mark.parametrize("make", [lines, parquet])
def test_pages_hold_all_rows_once(tmp_path: Path, make: type) -> None:
    look = Look("out", [str(make(tmp_path, 120))], None)
    assert [len(ids(look, f"page={page}")) for page in (1, 2, 3)] == [PAGE, PAGE, 20]
    assert [name for page in (1, 2, 3) for name in ids(look, f"page={page}")] == [f"r{n}" for n in range(120)]
    last = look.page("page=3")
    assert last.page_said == "101 to 120 of 120 rows"
    assert dict(last.pages) == {"first": "?page=1", "previous": "?page=2", "next": "", "last": ""}


@pytest.mark.parametrize(
    "query", ["page=0", "page=", "page=-3", "page=x", "page=99999999999999999999", "a=1&a=2", "%00"]
)
def test_an_odd_address_is_a_page_too(tmp_path: Path, query: str) -> None:
    look = Look("out", [str(lines(tmp_path, 60))], None)
    assert len(look.page(query).rows) in (PAGE, 10)


def test_filters_find_rows_wherever_they_are(tmp_path: Path) -> None:
    look = Look("out", [str(lines(tmp_path, 1000))], None)
    assert ids(look, "failed=1") == [f"r{n}" for n in range(99, 1000, 100)]
    cut = look.page("kind=length&page=2")
    assert [row.id.text for row in cut.rows] == [f"r{n}" for n in range(9, 1000, 10) if n % 100 != 99][PAGE:]
    assert cut.page_said == "51 to 90 of 90 that fit, of 1,000 rows"
    assert dict(cut.pages)["first"] == "?kind=length&page=1"
    assert look.page("kind=length&failed=1").rows == []
    assert look.page("below=50").rows == []
    assert set(look.page("").kinds) == {"stop", "length", "EngineKiller"}


def test_rows_of_low_confidence_are_found(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "x": 1, "confidences": {"x": -n / 10}, "spans": {}} for n in range(30)]
    look = Look("out", [str(write_rows(tmp_path / "a.jsonl", rows))], None)
    assert ids(look, "below=20") == [f"r{n}" for n in range(17, 30)]
    assert look.page("").with_confidence


def test_prompts_stand_beside_their_answers(tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "p.jsonl", ({"id": f"r{n}", "prompt": f"question {n}"} for n in range(120)))
    look = Look("out", [str(lines(tmp_path, 120))], Input([str(prompts)]))
    assert [row.prompt[0].text for row in look.page("page=3").rows] == [f"question {n}" for n in range(100, 120)]


def test_an_output_without_rows_is_one_empty_page(tmp_path: Path) -> None:
    page = Look("out", [str(lines(tmp_path, 0))], None).page("page=7")
    assert (page.rows, page.page_said) == ([], "0 of 0 rows")


def test_a_page_of_one_row_says_row(tmp_path: Path) -> None:
    assert Look("out", [str(lines(tmp_path, 1))], None).page("").page_said == "1 to 1 of 1 row"


@given(st.builds(Filter, st.text(max_size=9), st.booleans(), st.none() | st.integers(0, 100)), st.integers(1, 10**9))
def test_an_address_says_what_the_filter_is(chosen: Filter, page: int) -> None:
    assert Filter.parse(chosen.query(page).removeprefix("?")) == (chosen, page)


def test_a_file_that_was_cut_while_it_is_shown_is_told(tmp_path: Path) -> None:
    path = lines(tmp_path, 120)
    look = Look("out", [str(path)], None)
    assert len(look.page("").rows) == 50
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ConfigError, match="has changed since"):
        look.page("page=2")


@pytest.mark.parametrize("make", [lines, csv_lines])
def test_the_first_page_is_there_before_the_rows_are_counted(tmp_path: Path, make: Callable[..., Path]) -> None:
    look = Look("out", [str(make(tmp_path, 6000)), str(make(tmp_path, 10, "more"))], None)
    first = look.page("")
    assert look.known is None
    assert [row.id.text for row in first.rows] == [f"r{n}" for n in range(PAGE)]
    assert first.page_said == "1 to 50; the rows are being counted"
    assert dict(first.pages) == {"first": "", "previous": "", "next": "?page=2", "last": ""}
    assert ids(look, "page=6")[0] == "r250"
    assert ids(look, "page=121") == [f"r{n}" for n in range(10)]
    assert look.page("").page_said == "1 to 50 of 6,010 rows"


def test_rows_are_counted_while_pages_are_read(tmp_path: Path) -> None:
    look = Look("out", [str(lines(tmp_path, 20_000))], None)
    with ThreadPoolExecutor(4) as threads:
        counts = [threads.submit(look.count) for _ in range(3)]
        pages = [threads.submit(ids, look, f"page={page}") for page in (1, 400, 200, 7)]
        assert [page.result()[0] for page in pages] == ["r0", "r19950", "r9950", "r300"]
        assert {each.result() for each in counts} == {20_000}
