from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
from playwright.sync_api import Browser

from millrace.pipelines.cli import dispatch
from millrace.pipelines.commands.view import files_named
from tests.job_commands import started
from tests.json_lines import write_rows
from tests.pipelines.commands.view_outputs import lines, parquet
from tests.pipelines.pages.opened import address_of, opened
from tests.pipelines.refusals import Refused
from tests.servers.chromium import browser
from tests.waiting import eventually

MILLION = 1_000_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def view(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "millrace", "view", *arguments, "--no-browser"]


def address_in(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().split(" at ")[1].split()[0]


def test_rows_are_turned_over_and_filtered_in_a_browser(tmp_path: Path, chromium: Browser) -> None:
    path = parquet(tmp_path, 230)
    with started(view(str(path)), stdout=subprocess.PIPE) as process:
        address = address_in(process)
        with opened(chromium, address) as found:
            assert found.shown_rows() == 50
            with found.page.expect_navigation():
                found.page.get_by_role("link", name="last").first.click()
            assert found.page.locator("article.row h3").all_inner_texts() == [f"r{n}" for n in range(200, 230)]
            found.page.get_by_label("ended by").select_option("length")
            with found.page.expect_navigation():
                found.page.get_by_role("button", name="Show").click()
            expected = [f"r{n}" for n in range(9, 230, 10) if n % 100 != 99]
            assert found.page.locator("article.row h3").all_inner_texts() == expected
            assert found.is_clean(address)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_one_file_of_the_first_rows_is_written(
    tmp_path: Path, chromium: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(tmp_path, 100)
    prompts = write_rows(tmp_path / "p.jsonl", ({"id": f"r{n}", "prompt": f"question {n}"} for n in range(100)))
    page = tmp_path / "page.html"
    flags = ["--output", str(page), "--rows", "30", "--input", str(prompts)]
    assert dispatch(["view", f"{tmp_path}/out.jsonl", *flags]) == 0
    assert capsys.readouterr().out == f"the first 30 rows of 100: {page}\n"
    with opened(chromium, address_of(page)) as found:
        assert found.page.locator("article.row .prompt").all_inner_texts() == [f"question {n}" for n in range(30)]
        found.page.get_by_label("ended by").select_option("length")
        assert found.shown_rows() == 3
        assert found.is_clean(address_of(page))


@pytest.mark.parametrize("name", ["out-00000-of-00001.jsonl", "p.jsonl", "notes.txt"])
def test_a_page_replaces_no_rows_and_no_foreign_file(tmp_path: Path, refused: Refused, name: str) -> None:
    rows = lines(tmp_path, 3)
    prompts = write_rows(tmp_path / "p.jsonl", [{"id": "r0", "prompt": "x"}])
    (tmp_path / "notes.txt").write_text("mine")
    before = (tmp_path / name).read_bytes()
    flags = ["--output", f"{tmp_path}/{name}", "--input", str(prompts)]
    assert f"--output {tmp_path}/{name}: " in refused("view", str(rows), *flags)
    assert (tmp_path / name).read_bytes() == before


def test_files_are_named_by_path_glob_or_what_a_jobs_output_said(tmp_path: Path) -> None:
    one, letters = lines(tmp_path, 1), lines(tmp_path, 1, "out.dead_letters")
    assert files_named([str(one)]) == [str(one)]
    assert files_named([f"{tmp_path}/*"]) == [str(one), str(letters)]
    assert files_named([f"{tmp_path}/out", str(one)]) == [str(one), str(letters)]
    assert files_named([f"{tmp_path}/out.jsonl"]) == [str(one), str(letters)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "OUTPUT is missing: takes files of results or dead letters"),
        (["gone.jsonl"], "gone.jsonl: no such output"),
        (["*.csv"], "*.csv: no such output"),
        (["a.jsonl", "--rows", "0"], "--rows 0: takes 1 or more"),
        (["a.jsonl", "--input", "gone"], "--input gone: no such file"),
        (["bad.parquet"], "bad.parquet: is no Parquet file"),
        (["a.jsonl", "--output", "no/such/folder/\0/x"], "--output"),
    ],
)
def test_what_cannot_be_looked_at_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "bad.parquet").write_text("{}\n")
    assert said in refused("view", *arguments)


@pytest.mark.slow
def test_the_last_page_of_a_million_rows_takes_no_more_memory_than_the_first(tmp_path: Path) -> None:
    path = parquet(tmp_path, MILLION)
    with started(view(str(path)), stdout=subprocess.PIPE) as process:
        address = address_in(process)
        peaks = []
        for query in ("", f"?page={MILLION // 50}", "?page=7000", "?failed=1&page=200"):
            page = urllib.request.urlopen(address + query).read().decode()
            peaks.append(peak(process.pid))
        assert re.search(r"9,951 to 10,000 of 10,000 that fit, of 1,000,000 rows", page)
        assert ">r999999<" in page
        assert max(peaks) - peaks[0] < 150, f"MB: {peaks}"


def peak(pid: int) -> float:
    """Most memory that the process has had, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1000


def test_only_this_user_can_read_the_address_that_a_browser_is_given(tmp_path: Path) -> None:
    """Command lines are seen by everyone on the machine."""
    seen = tmp_path / "seen"
    (tmp_path / "browser").write_text(
        f'#!/bin/sh\nfile="${{1#file://}}"\nstat -c %a "$(dirname "$file")" > {seen}.new\n'
        f'cat "$file" >> {seen}.new\nmv {seen}.new {seen}\n'
    )
    (tmp_path / "browser").chmod(0o755)
    command = view(str(lines(tmp_path, 3)))[:-1]
    env = os.environ | {"BROWSER": f"{tmp_path}/browser %s"}
    with started(command, stdout=subprocess.PIPE, env=env) as process:
        address = address_in(process)
        eventually(seen.exists)
        mode, html = seen.read_text().split("\n", 1)
        assert mode == "700"
        assert address in html
        token = address.rstrip("/").rpartition("/")[2]
        assert not any(token in " ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
