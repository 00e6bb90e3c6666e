"""The sources of the pages: lines of at most 100 columns, and names of tests that are there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from millrace.model_manager.wire import engine_messages, messages

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "model_manager/store/embedded/millrace-tiny/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_CODE = re.compile(r"`[^`]+`")
_LIST_MARK = re.compile(r"^\s*([-*+]|\d+\.)\s+")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page, but code, tables, headings and comments."""
    in_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith(("|", "#", "<")) and not line.startswith("    "):
            yield number, line


def can_be_broken(line: str) -> bool:
    """Whether there is a space outside code."""
    return " " in _CODE.sub("`", _LIST_MARK.sub("", line).strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_has_lines_of_at_most_100_columns(page: Path) -> None:
    long = [f"{number}: {line}" for number, line in prose(page) if len(line) > 100 and can_be_broken(line)]
    assert not long, "\n".join(long)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_not_run_on_a_page_names_tests_that_are_there(page: Path) -> None:
    marks = re.findall(r"<!-- not run: ([^>]+)-->", page.read_text(encoding="utf-8"))
    named = [path.rstrip(".") for mark in marks for path in re.findall(r"tests/\S+", mark)]
    assert [path for path in named if not (ROOT / path).exists()] == []


THREATS, PROTOCOL = (
    (ROOT / f"docs/explanation/{name}.md").read_text(encoding="utf-8") for name in ("security", "protocol")
)
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THREATS + PROTOCOL)


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)), ids=lambda each: each.rpartition("/")[2])
def test_a_test_that_tries_an_attack_or_holds_an_invariant_is_there(path: str, name: str) -> None:
    """A function, or the test case of a state machine."""
    assert re.search(rf"^(def {name}\(|{name} = )", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_invariant_of_the_protocol_names_a_test() -> None:
    numbered = re.findall(r"^(\d+)\. (.*(?:\n {3,4}\S.*)*)", PROTOCOL, re.MULTILINE)
    assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1))
    assert len(numbered) > 10
    assert [text for _, text in numbered if not re.search(r"`tests/[\w/]+\.py::\w+`$", text)] == []


def test_the_protocol_names_each_message() -> None:
    kinds = [
        messages.ClientMessage,
        messages.ManagerToClient,
        engine_messages.ManagerToEngine,
        engine_messages.EngineMessage,
    ]
    sent = {message.__name__ for kind in kinds for message in get_args(kind)}
    assert len(sent) >= 20
    assert sorted(name for name in sent if not re.search(rf"\b{name}\b", PROTOCOL)) == []


def test_each_threat_names_a_test() -> None:
    rows = [row for row in re.findall(r"^\| .*", THREATS, re.MULTILINE) if not row.startswith("| it tries")]
    assert rows
    assert [row for row in rows if not re.search(r"\| `tests/", row)] == []


def test_pages_that_messages_of_the_product_name_are_there() -> None:
    """An error names a page by its path in the repository, since a wheel has no pages."""
    layers = ("pipelines", "serving", "transforms", "model_manager")
    sources = [file.read_text(encoding="utf-8") for layer in layers for file in (ROOT / layer).rglob("*.py")]
    pattern = re.compile(r"\bdocs/(?:how-to|tutorials|explanation|reference)/[\w-]+\.md")
    named = {page for source in sources for page in pattern.findall(source)}
    assert len(named) >= 4
    assert [page for page in named if not (ROOT / page).is_file()] == []
