from __future__ import annotations

from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.commands.view_looks import Filter, Page
from millrace.pipelines.pages import page_files
from millrace.pipelines.pages.html import page, policy
from millrace.pipelines.pages.page_files import check_page, write_page
from millrace.transforms.writing.output_files import OutputFiles


def a_page() -> str:
    view = Page(title="t", said="", kinds=[], chosen=Filter(), with_confidence=False, rows=[])
    return page("rows.html", view=view, title="t", policy=policy())


def test_a_page_replaces_a_page_and_nothing_else_unasked(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    check_page("--report", str(path), [], replaces=False)
    write_page(str(path), a_page())
    check_page("--report", str(path), [], replaces=False)
    path.write_text("<!doctype html><p>mine")
    with pytest.raises(ConfigError, match=r"^--report .*page\.html: is there already, .*--overwrite"):
        check_page("--report", str(path), [], replaces=False)
    check_page("--report", str(path), [], replaces=True)


def test_rows_that_are_read_are_never_replaced(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    (tmp_path / "link").symlink_to(rows)
    (tmp_path / "hard").hardlink_to(rows)
    for name in ("rows.jsonl", "link", "hard", "./rows.jsonl"):
        with pytest.raises(ConfigError, match="is read as rows"):
            check_page("--output", f"{tmp_path}/{name}", [f"{tmp_path}/*.jsonl"], replaces=True)


def test_a_folder_or_a_device_is_no_page(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/dev/null"):
        with pytest.raises(ConfigError, match="a folder or a device"):
            check_page("--report", path, [], replaces=True)


def test_a_failed_write_leaves_nothing_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    write_page(str(path), "before")

    def refuse(*_: str) -> None:
        raise OSError("no room")

    monkeypatch.setattr(page_files, "rename", refuse)
    with pytest.raises(OSError, match="no room"):
        write_page(str(path), "after")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("out/c-00000-of-00001.jsonl", True),
        ("out/c.dead_letters-00000-of-00001.parquet", True),
        ("out/c-resume1-00000-of-00001.csv", True),
        ("out/c.tmp/x", True),
        ("out/.millrace/c.settings.json", True),
        ("out/c.report.html", False),
        ("out/d-00000-of-00001.jsonl", False),
        ("c-00000-of-00001.jsonl", False),
    ],
)
def test_names_that_an_outputs_files_may_have(name: str, is_ours: bool) -> None:
    assert OutputFiles("out/c").may_name(name) is is_ours
