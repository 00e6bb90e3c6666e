"""Reports of whole jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from millrace.pipelines.cli import dispatch
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.job.report.job_report import reported
from millrace.transforms.writing.output_files import OutputFiles, OutputKind
from tests.job_commands import job_command, started
from tests.json_lines import rows_of, write_rows
from tests.pipelines.job.job_processes import in_full_swing
from tests.pipelines.pages.hostile import TEXTS
from tests.pipelines.pages.opened import Opened, address_of, opened
from tests.servers.chromium import browser

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.usefixtures("shared_runtime")
FAKE = ["--backend", "fake", "--max_tokens", "4", "--linger", "20"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """60 hostile questions, a line that is no JSON, a prompt that is too long and one with a bad parameter."""
    texts = [text.replace("\ud83d", "") for text in TEXTS]
    lines = [json.dumps({"id": f"q{n}", "prompt": texts[n % len(texts)]}) for n in range(60)]
    lines += ["not json", json.dumps({"prompt": "word " * 5000}), json.dumps({"prompt": "p", "max_tokens": -1})]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "prompts.jsonl")


def figures(found: Opened) -> dict[str, str]:
    names = found.page.locator(".tiles dt").all_inner_texts()
    values = found.page.eval_on_selector_all(".tiles dd", "nodes => nodes.map(node => node.firstChild.textContent)")
    return dict(zip(names, values, strict=True))


def table(found: Opened, heading: str) -> dict[str, str]:
    rows = found.page.locator(f"section:has(> h2:text-is('{heading}')) > table > tbody > tr")
    cells = [row.locator("th, td").all_inner_texts() for row in rows.all()]
    return {name.strip(): first.strip() for name, first, *_ in cells}


def test_a_report_says_what_the_summary_and_the_output_say(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium: Browser
) -> None:
    assert dispatch(["run", "--input", prompts, "--output", f"{tmp_path}/out/c", *FAKE]) == 0
    said = capsys.readouterr().out
    path = tmp_path / "out/c.report.html"
    assert f"report:       {path}" in said
    rows, letters = rows_of(tmp_path, "out/c-*.jsonl"), rows_of(tmp_path, "out/c.dead_letters-*.jsonl")
    with opened(chromium, address_of(path)) as found:
        told = figures(found)
        assert (told["rows answered"], told["rows failed"]) == (str(len(rows)), str(len(letters))) == ("60", "3")
        summary = re.search(r"([\d,]+) prompt tokens \(([\d,]+) from the cache\), ([\d,]+) generated", said)
        assert summary
        assert (told["prompt tokens"], told["generated tokens"]) == (summary[1], summary[3])
        assert int(told["prompt tokens"].replace(",", "")) == sum(row["usage"]["prompt_tokens"] for row in rows)
        assert table(found, "Dead letters") == {"InvalidRequest": "1", "PromptTooLong": "1", "UnreadableRow": "1"}
        assert table(found, "How requests ended") == {"length": "60"}
        assert "3 rows (1 InvalidRequest, 1 PromptTooLong, 1 UnreadableRow) in" in said
        assert told["cost"] == "not known"
        settings = table(found, "Settings and versions")
        assert (settings["engine"], settings["max_tokens"], settings["millrace"]) == ("fake", "4", "0.1.0")
        assert "steps" in table(found, "Engine")
        assert found.page.locator("article.row").count() >= 20
        by_id = {row["id"]: row for row in rows}
        for card in found.page.locator("article.row:not(.failed)").all():
            row = by_id[card.locator("h3").inner_text()]
            assert card.locator(".answer").text_content() == row["text"]
            assert card.locator(".prompt").count() == 1
        assert found.page.locator("figure").count() >= 3
        assert found.is_clean(address_of(path))


def test_a_job_whose_rows_all_failed_says_so_and_nothing_of_an_output(tmp_path: Path, chromium: Browser) -> None:
    rows = write_rows(tmp_path / "bad.jsonl", ({"id": f"r{n}", "prompt": "x", "max_tokens": -1} for n in range(7)))
    assert dispatch(["run", "--input", str(rows), "--output", f"{tmp_path}/c", *FAKE]) == 1
    with opened(chromium, address_of(tmp_path / "c.report.html")) as found:
        assert found.page.locator(".badge").first.inner_text() == "every row failed"
        assert "time" not in figures(found)
        assert found.page.locator("#rows h2").inner_text() == "The first 5 dead letters"
        assert set(found.page.locator(".unknown").all_inner_texts()) >= {"no row was answered"}
        assert "can be read" not in found.page.locator("main").inner_text()


@pytest.mark.parametrize("name", ["prompts.jsonl", "notes.txt", "out/c-00000-of-00001.jsonl", "out/../out/c.tmp/x"])
def test_a_report_replaces_no_other_file(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "out").mkdir()
    before = Path(prompts).read_bytes()
    flags = ["--input", prompts, "--output", f"{tmp_path}/out/c", "--report", f"{tmp_path}/{name}", *FAKE]
    assert dispatch(["run", *flags]) == 2
    assert f"--report {tmp_path}/{name}: " in capsys.readouterr().err
    assert (Path(prompts).read_bytes(), (tmp_path / "notes.txt").read_text()) == (before, "mine")
    assert not list((tmp_path / "out").glob("c*"))


def test_a_new_output_is_not_said_to_be_resumed(prompts: str, tmp_path: Path) -> None:
    flags = ["--input", prompts, "--output", f"{tmp_path}/out/c", "--resume", "--quiet", *FAKE]
    assert dispatch(["run", *flags]) == 0
    assert "Resumed" not in (tmp_path / "out/c.report.html").read_text()


def test_a_report_of_a_broken_job_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise OSError("no disk")

    monkeypatch.setattr(OutputFiles, "interrupted", refuses)
    options = parse(["--input", "a.jsonl", "--output", f"{tmp_path}/c", *FAKE])
    with pytest.raises(ValueError, match="broke"), reported(options, lambda: None, 0.0):
        raise ValueError("broke")
    assert [each.getMessage() for each in caplog.records if "no report" in each.getMessage()] == [
        f"the job has no report in {tmp_path}/c.report.html: no disk"
    ]


def test_a_job_without_a_report_gets_it_when_nothing_is_left_to_do_and_a_second_signal_does_not_lose_it(
    prompts: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--input", prompts, "--output", f"{tmp_path}/c", "--quiet", *FAKE]
    Path(prompts).write_text("\n".join(Path(prompts).read_text().splitlines()[:60]))
    assert dispatch(["run", *flags, "--no-report"]) == 0
    path = tmp_path / "c.report.html"
    assert dispatch(["run", *flags, "--resume"]) == 0
    assert "All rows are from earlier runs" in path.read_text()
    assert "<dt>rows answered</dt><dd>60" in path.read_text()

    def interrupted(files: OutputFiles, kind: OutputKind) -> list[str]:
        if kind == "completions":
            os.kill(os.getpid(), signal.SIGTERM)
        return files.current(kind)

    monkeypatch.setattr(OutputFiles, "interrupted", interrupted)
    with pytest.raises(KeyboardInterrupt), reported(parse(flags), lambda: None, 0.0):
        raise KeyboardInterrupt
    assert "Ctrl-C again ends without it" in caplog.text
    assert '"badge bad">interrupted<' in path.read_text()
    monkeypatch.undo()
    assert dispatch(["run", *flags, "--resume"]) == 0
    assert '"badge good">done<' in path.read_text(), "in the place of the one of a job that was interrupted"


def test_no_report_is_written_where_none_is_wanted(prompts: str, tmp_path: Path) -> None:
    places = ["run", "--input", prompts, "--quiet", *FAKE]
    assert dispatch([*places, "--output", f"{tmp_path}/out/c", "--no-report"]) == 0
    assert not list(tmp_path.glob("out/*.html"))
    assert dispatch([*places, "--output", f"{tmp_path}/out/d", "--report", f"{tmp_path}/mine.html"]) == 0
    assert not list(tmp_path.glob("out/*.html"))
    assert "q1" in (tmp_path / "mine.html").read_text()
    assert not list(tmp_path.glob("*.new"))


def test_a_report_that_cannot_be_written_is_one_warning(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    flags = ["--report", f"{tmp_path}/file/report.html", *FAKE]
    assert dispatch(["run", "--input", prompts, "--output", f"{tmp_path}/out/c", *flags]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("the job has no report in") == 1
    assert "report:  " not in shown.out


def test_a_resumed_job_says_so_and_counts_its_own_rows(prompts: str, tmp_path: Path, chromium: Browser) -> None:
    flags = ["run", "--input", prompts, "--output", f"{tmp_path}/out/c", "--quiet", *FAKE]
    assert dispatch([*flags, "--limit", "10"]) == 0
    assert dispatch([*flags, "--resume"]) == 0
    path = tmp_path / "out/c.report.html"
    with opened(chromium, address_of(path)) as found:
        assert figures(found)["rows answered"] == "50"
        assert (
            "Resumed: the output includes 1 file of earlier runs, not" in found.page.locator(".note").first.inner_text()
        )
    before = path.read_bytes()
    (tmp_path / "prompts.jsonl").write_text("\n".join(Path(prompts).read_text().splitlines()[:60]))
    assert dispatch([*flags, "--resume"]) == 0
    assert path.read_bytes() == before, "a job that has nothing to do leaves the report as it is"


@pytest.mark.parametrize(
    ("by", "status", "how"),
    [(signal.SIGINT, 130, "millrace: interrupted"), (signal.SIGTERM, 143, "interrupted by SIGTERM")],
)
def test_an_interrupted_job_reports_what_it_has_written(
    runtime: Path, tmp_path: Path, chromium: Browser, by: signal.Signals, status: int, how: str
) -> None:
    rows = ({"id": f"p{n}", "prompt": f"question {n}"} for n in range(4000))
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    command = [*job_command("run", prompts, tmp_path / "out/c"), "--backend=fake", "--max_tokens=20", "--linger=0.5"]
    (temporary := tmp_path / "tmp").mkdir()
    env = os.environ | {"MILLRACE_FAKE_STEP_SECONDS": "0.02", "TMPDIR": str(temporary)}
    with started(command, stderr=subprocess.PIPE, env=env) as process:
        in_full_swing(runtime, tmp_path / "out")
        process.send_signal(by)
        _, shown = process.communicate(timeout=300)
    assert process.returncode == status, shown
    assert f"{how}; --resume goes on from what is in" in shown
    assert list(temporary.iterdir()) == []
    path = tmp_path / "out/c.report.html"
    with opened(chromium, address_of(path)) as found:
        assert found.page.locator(".top .badge").inner_text() == "interrupted"
        assert "--resume goes on from what is in" in found.page.locator(".note").first.inner_text()
        told = figures(found)
        written = rows_of(tmp_path, "out/c.tmp/*/completions-*.jsonl")
        assert told["rows answered"] == str(len(written))
        assert found.page.locator("article.row .prompt").count() == min(len(written), 20)
        assert found.is_clean(address_of(path))


def test_a_job_that_fails_says_why(tmp_path: Path, chromium: Browser) -> None:
    rows: list[Any] = [{"id": f"p{n}", "prompt": f"question {n}"} for n in range(30)]
    rows += [{"id": "bad", "prompt": "x", "max_tokens": -1}]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    command = ["run", "--input", str(prompts), "--output", f"{tmp_path}/out/c", "--fail_fast", *FAKE]
    assert dispatch(command) == 1
    path = tmp_path / "out/c.report.html"
    if not path.exists():
        assert not rows_of(tmp_path, "out/c.tmp/*/completions-*.jsonl"), "nothing was written before"
        return
    with opened(chromium, address_of(path)) as found:
        assert found.page.locator(".top .badge").inner_text() == "failed"
        assert "max_tokens" in found.page.locator(".note").first.inner_text()


def test_the_cost_is_told_by_prices_and_a_machines_type(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium: Browser
) -> None:
    prices = ["--prices", str(ROOT / "deploy/dataflow/prices.example.toml"), "--machine_type"]
    places = ["run", "--input", prompts, "--output", f"{tmp_path}/out/c", "--quiet"]
    assert dispatch([*places, *FAKE, *prices, "n1-standard-4"]) == 0
    with opened(chromium, address_of(tmp_path / "out/c.report.html")) as found:
        assert re.fullmatch(r"[\d.]+ USD", figures(found)["cost"])
        assert "n1-standard-4 at 0.2774 an hour" in found.page.locator(".tiles").inner_text()
    assert dispatch([*places, "--overwrite", *FAKE, *prices, "my-own"]) == 2
    assert "machine_hours.my-own" in capsys.readouterr().err


def test_a_stream_has_no_report_and_refuses_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input", f"watch:{tmp_path}/*.jsonl", "--output", f"{tmp_path}/out/c", "--report", *FAKE]
    assert dispatch(["run", *flags]) == 2
    assert "takes a job that ends" in capsys.readouterr().err


@pytest.mark.slow
def test_documents_show_their_spans(tmp_path: Path, chromium: Browser) -> None:
    flags = ["--schema", "examples.documents.rows:Order", "--kv_cache_gib", "0.05", "--linger", "20", "--quiet"]
    source = str(ROOT / "examples/documents/orders/*.txt")
    assert dispatch(["extract", "--input", source, "--output", f"{tmp_path}/out/rows.parquet", *flags]) == 0
    path = tmp_path / "out/rows.report.html"
    with opened(chromium, address_of(path)) as found:
        assert found.page.locator("article.row:not(.failed)").count() == 20
        for card in found.page.locator("article.row:not(.failed)").all():
            text = Path(card.locator("h3").inner_text()).read_text()
            assert card.locator(".prompt").text_content() == text
            values = dict(
                zip(
                    card.locator("tbody th").all_inner_texts(),
                    card.locator("tbody td.value").all_inner_texts(),
                    strict=True,
                )
            )
            marks = {mark.get_attribute("title"): mark.text_content() for mark in card.locator("mark").all()}
            assert marks
            assert marks.items() <= values.items()
        found.page.get_by_label("confidence below").fill("80")
        assert 0 < found.shown_rows() < 20
        assert found.is_clean(address_of(path))


def test_labels_show_their_probabilities(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(5):
        (tmp_path / f"docs/{number}.txt").write_text(f"review {number} <b>good</b>")
    flags = ["--labels", "good,bad", "--backend", "fake", "--linger", "20", "--quiet"]
    assert dispatch(["classify", "--input", f"{tmp_path}/docs/*.txt", "--output", f"{tmp_path}/out/l", *flags]) == 0
    path = tmp_path / "out/l.report.html"
    with opened(chromium, address_of(path)) as found:
        assert sorted(found.page.locator("article.row .prompt").all_inner_texts()) == [
            f"review {number} <b>good</b>" for number in range(5)
        ]
        assert found.page.locator("article.row").first.locator("tbody tr").count() == 2
        assert found.is_clean(address_of(path))
