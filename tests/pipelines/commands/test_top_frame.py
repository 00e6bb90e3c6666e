"""A frame of `millrace top` has the figures, and fits a terminal of any width."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from millrace.model_manager.wire.status import ModelInfo
from millrace.pipelines.commands.top_frame import bar, frame, sparkline
from millrace.pipelines.edge import plain
from millrace.serving.window.figures import Figures
from millrace.serving.window.history import Point
from tests.serving.metrics.scrapes import STATUS
from tests.serving.window.looks import JOB, LETTER, ROW, look

INFO = ModelInfo("tiny", "", "", "bfloat16", "cpu", 1, 1, 64, [], 0.0, 4, 16, "int8", "bfloat16")


def shown(figures: Figures, width: int = 100, height: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(frame(figures, [Point(1.0, 5.0, None), Point(2.0, 10.0, None)], width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def loaded() -> Figures:
    model = msgspec.structs.replace(STATUS.models[0], info=INFO)
    return msgspec.structs.replace(look(JOB), status=msgspec.structs.replace(STATUS, models=[model]))


def test_it_has_models_jobs_rows_and_dead_letters() -> None:
    text = shown(loaded(), 140)
    for part in ("manager 1, up 1:00", "tiny", "ready", "3/64 +4", "25%", "bfloat16", "int8", "5 restarts", "pid 2, 3"):
        assert part in text
    for part in ("run to out/c", "11 of 20 rows", "2.0 rows/s", "14 tokens/s", "0:04 left", "1 failed"):
        assert part in text
    (row,) = [line for line in text.splitlines() if "5 + 7 tokens, 1.30 s" in line]
    assert row.startswith("a.txt@40 ")
    assert "PromptTooLong the prompt has 9 tokens (/in/a.txt@12)" in text


@pytest.mark.parametrize("width", [10, 20, 37, 60, 80, 89, 90, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(loaded(), width).splitlines())) <= width


@pytest.mark.parametrize("width", [72, 80, 100])
def test_no_figure_of_a_busy_machine_is_cut_at_usual_widths(width: int) -> None:
    job = msgspec.structs.replace(
        JOB,
        total=5_000_000,
        exact=False,
        done=1_234_567,
        failed=12_345,
        rows_per_s=1234.5,
        tokens_per_s=123_456.0,
        seconds_left=45_296.0,
    )
    stats = msgspec.structs.replace(STATUS.models[0].stats, batch=250.1, waiting=12_345, tokens_per_s=12_345.0)
    model = msgspec.structs.replace(
        STATUS.models[0], model="org/a-rather-long-name-of-a-model", state="restarting", info=INFO, stats=stats
    )
    row = msgspec.structs.replace(ROW, prompt_tokens=12_345, generated_tokens=1234, decode=3000.0)
    figures = msgspec.structs.replace(
        look(job), status=msgspec.structs.replace(STATUS, models=[model]), rows=[row, ROW]
    )
    text = shown(figures, width)
    for part in (
        "1,246,912 of ≈ 5,000,000 rows",
        "1,234.5 rows/s",
        "123,456 tokens/s",
        "12:34:56 left",
        "12,345 failed",
    ):
        assert part in text
    assert "━" in text.split("jobs ─")[1].split("1,246,912")[0].splitlines()[-1], "the bar stands beside the counts"
    for part in ("org/a-", "restarting", "251/64 +12345", "━━────── 25%", "12,345  ", "2 MB"):
        assert part in text.split("models ─")[1].split("jobs ─")[0]
    for part in ("12,345 + 1,234 tokens, 50:00", "5 + 7 tokens, 1.30 s"):
        assert part in text


def test_rows_of_several_jobs_say_whose_they_are_and_long_ids_are_cut() -> None:
    rows = [ROW, *(msgspec.structs.replace(ROW, of="out/d", id=name) for name in ("b", "", "c" * 200))]
    text = shown(msgspec.structs.replace(look(), rows=rows), 100)
    for name in ("c a.txt@40 ", "d b ", "d  ", f"…{'c' * 23}  "):
        assert name in text
    assert "c" * 24 not in text


def test_a_low_terminal_has_fewer_rows() -> None:
    many = msgspec.structs.replace(look(), rows=[ROW] * 20, dead_letters=[LETTER] * 50)
    assert len(shown(many, height=20).splitlines()) <= 20
    assert len(shown(many, height=100).splitlines()) > 30


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (look(has_manager=False), "no manager runs"),
        (look(has_manager=False, error="it hangs"), "the manager does not answer: it hangs"),
    ],
)
def test_without_a_manager_it_says_so(figures: Figures, told: str) -> None:
    assert told in shown(figures)


def test_a_job_without_a_total_or_a_row_says_what_is_known() -> None:
    stream = msgspec.structs.replace(JOB, total=None, seconds_left=None)
    assert "11 rows   2.0 rows/s" in shown(look(stream))
    begins = msgspec.structs.replace(JOB, done=0, failed=0, rows_per_s=0.0, seconds_left=None)
    assert "0 of 20 rows   starting" in shown(look(begins))
    assert "11 of ≈ 20 rows" in shown(look(msgspec.structs.replace(JOB, exact=False)))


def test_failures_that_the_manager_does_not_know_are_not_told_as_none() -> None:
    ended = msgspec.structs.replace(STATUS.jobs[0], job="ended", failed=0)
    figures = msgspec.structs.replace(look(), other_jobs=[ended])
    assert "ended" in shown(figures)
    assert "failed" not in shown(figures).split("jobs")[1]
    elsewhere = msgspec.structs.replace(JOB, counted_here=False, failed=0, dead_letters=[], rows=[])
    assert "not known here, the workers are other processes: out/c" in shown(look(elsewhere))


def test_a_job_that_says_nothing_any_more_is_told() -> None:
    assert "no news for 30 s" in shown(look(msgspec.structs.replace(JOB, at=70.0)))
    assert "no news" not in shown(look(msgspec.structs.replace(JOB, at=98.0)))


def test_nothing_steers_the_terminal() -> None:
    letter = msgspec.structs.replace(LETTER, reason="\x1b[2J\x07[bold]x[/bold]", error="\x1b]0;x", source="a\nb")
    text = shown(look(msgspec.structs.replace(JOB, dead_letters=[letter], output="out/\x1b[31m")))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]x[/bold]" in text
    assert plain("a\tb\u202ec") == "a�b�c"


def test_a_curve_is_as_wide_as_it_may_be_and_as_high_as_its_highest() -> None:
    assert sparkline([1.0, 2.0, 4.0, 8.0], 3) == "▂▄█"
    assert sparkline([0.0, 0.0], 5) == "  "
    assert sparkline([1.0, 2.0], 0) == ""
    assert sparkline([1.0], 5) == "", "one look is no curve"


@pytest.mark.parametrize(
    ("part", "drawn"), [(0.0, "────"), (0.5, "━━──"), (1.0, "━━━━"), (7.0, "━━━━"), (-1.0, "────")]
)
def test_a_bar_has_its_part_filled(part: float, drawn: str) -> None:
    assert bar(part, 4) == drawn
