"""README's figures are those of the result files, and tables say what they rest on."""

from pathlib import Path

from benchmarks.contenders import GEMM_BOUND
from benchmarks.results import Match, Row, keep
from benchmarks.table import README, rendered, tables

BF16, FP32 = Match("opt-125m", "skewed", "bfloat16"), Match("opt-125m", "skewed", "float32")


def _row(match: Match, engine: str, *rounds: float) -> Row:
    rate = sum(rounds) / len(rounds)
    return Row(match, engine, rate, list(rounds), 1500.0, versions={"torch": "2"}, machine="A CPU", taken="2026-11-21")


def test_readme_holds_the_tables_of_the_result_files() -> None:
    text = README.read_text(encoding="utf-8")

    assert rendered(text) == text, "python -m benchmarks.table writes them anew"
    assert text.count("<!-- benchmarks/results/") == 2


def test_the_fastest_of_each_dtype_stands_out_and_what_was_not_played_is_a_dash() -> None:
    table = tables([_row(FP32, "a", 10), _row(BF16, "a", 20, 40), _row(BF16, "b", 25)])

    assert "| opt-125m, skewed: tokens/s | float32 | bfloat16 |" in table
    assert "| a | **10**, 1,500 MB | **30** (20–40), 1,500 MB |" in table
    assert "| b | – | 25, 1,500 MB |" in table


def test_what_products_alone_allow_is_not_the_fastest_engine() -> None:
    table = tables([_row(BF16, "a", 10), _row(BF16, GEMM_BOUND, 99)])

    assert "| a | **10**" in table
    assert f"| {GEMM_BOUND} | 99" in table


def test_a_table_says_on_which_machine_with_which_versions_and_when() -> None:
    text = tables([_row(BF16, "a", 1, 2), _row(FP32, "a", 3)])

    assert "Medians of 1 or 2 interleaved rounds" in text
    assert "on A CPU; torch 2; taken 2026-11-21." in text


def test_shapes_and_workloads_have_tables_of_their_own() -> None:
    text = tables([_row(BF16, "a", 1), _row(Match("qwen-0.5b", "uniform", "int8"), "a", 2)])

    assert "| opt-125m, skewed: tokens/s | bfloat16 |" in text
    assert "| qwen-0.5b, uniform: tokens/s | int8 |" in text


def test_only_what_stands_between_markers_is_replaced(tmp_path: Path) -> None:
    keep(tmp_path / "benchmarks/results/x.json", [_row(BF16, "a", 5)])
    text = rendered("before\n<!-- benchmarks/results/x.json -->\nold\n<!-- end -->\nafter\n", tmp_path)

    assert text.startswith("before\n<!-- benchmarks/results/x.json -->\n\n| opt-125m")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
