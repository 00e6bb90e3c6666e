"""README's figures come from the result files, and tables say what they rest on."""

from pathlib import Path

from benchmarks.contenders import GEMM_BOUND
from benchmarks.results import Match, Row, keep
from benchmarks.small_tables import small_table
from benchmarks.table import PAGES, rendered, tables

BF16, FP32 = Match("opt-125m", "skewed", "bfloat16"), Match("opt-125m", "skewed", "float32")


def _row(match: Match, engine: str, *rounds: float) -> Row:
    rate = sum(rounds) / len(rounds)
    return Row(match, engine, rate, list(rounds), 1500.0, versions={"torch": "2"}, machine="A CPU", taken="2026-11-21")


def test_the_pages_hold_the_tables_of_the_result_files() -> None:
    for page, count in zip(PAGES, (1, 17, 12, 1, 2), strict=True):
        text = page.read_text(encoding="utf-8")
        assert rendered(text) == text, "python -m benchmarks.table writes them anew"
        assert text.count("<!-- benchmarks/results/") == count


def test_the_fastest_of_each_dtype_stands_out_and_what_was_not_played_is_a_dash() -> None:
    table = tables([_row(FP32, "a", 10), _row(BF16, "a", 20, 40), _row(BF16, "b", 25)])

    assert "| opt-125m, skewed: tokens/s | float32 | bfloat16 |" in table
    assert "| a | **10**, 1,500 MB | **30** (20–40), 1,500 MB |" in table
    assert "| b | – | 25, 1,500 MB |" in table


def test_what_products_alone_allow_is_not_the_fastest_engine() -> None:
    table = tables([_row(BF16, "a", 10), _row(BF16, GEMM_BOUND, 99)])

    assert "| a | **10**" in table
    assert f"| {GEMM_BOUND} | 99" in table


def test_only_what_stands_between_markers_is_replaced(tmp_path: Path) -> None:
    keep(tmp_path / "benchmarks/results/x.json", [_row(BF16, "a", 5)])
    text = rendered("before\n<!-- benchmarks/results/x.json -->\nold\n<!-- end -->\nafter\n", tmp_path)

    assert text.startswith("before\n<!-- benchmarks/results/x.json -->\n\n| opt-125m")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text


def test_what_was_never_measured_is_left_as_it_stands(tmp_path: Path) -> None:
    text = "<!-- benchmarks/results/none.json -->\nnot yet\n<!-- end -->\n"
    assert rendered(text, tmp_path) == text


def test_the_cost_of_http_has_a_line_for_requests_tokens_and_idle_streams() -> None:
    figures = {
        "connections": 40,
        "max_tokens": 10,
        "stream_tokens": 100,
        "rounds_cpu_s": {"whole": [0.0003, 0.00025], "streamed": [0.0014, 0.0015]},
        "cpu_ms_a_request": 0.275,
        "requests_a_core_s": 3636,
        "cpu_us_a_streamed_token": 14.5,
        "streamed_tokens_a_core_s": 68966,
        "idle_streams": 2000,
        "kb_an_idle_stream": 18,
        "machine": "M",
        "taken": "D",
    }
    assert small_table(figures).splitlines()[2:5] == [
        "| a request | 0.28 ms (0.25–0.30) | 3,636 requests/s |",
        "| a streamed token | 14 us (14–15) | 68,966 tokens/s |",
        "| 2,000 streams that wait | – | 18 KB each |",
    ]
