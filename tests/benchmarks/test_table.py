"""README's figures are those of the result files, and tables say what they rest on."""

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
    for page, count in zip(PAGES, (2, 5), strict=True):
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


def test_what_was_never_measured_is_left_as_it_stands(tmp_path: Path) -> None:
    text = "<!-- benchmarks/results/none.json -->\nnot yet\n<!-- end -->\n"
    assert rendered(text, tmp_path) == text


def test_starts_and_queues_have_tables() -> None:
    taken = {"machine": "A CPU", "taken": "2026-11-21"}
    start = {
        "engine": "a",
        "shape": "tiny",
        "dtype": "int8",
        "first_token_s": 2.0,
        "load_s": 1.0,
        "peak_rss_mb": 1500.0,
    }
    table = small_table(taken | {"starts": [start | {"memory": {"weights_mb": 3.0}, "rounds": [1.0, 2.0, 4.0]}]})
    assert "| tiny, int8: a | 2.0 (1.0–4.0) | 1.0 | 1,500 | 3 | – |" in table
    assert table.endswith("On A CPU; taken 2026-11-21.\n")
    memory = {"before": 1.0, "filled": 2.0, "after": 3.0}
    queues = small_table(taken | {"tokens_per_s": {"10000": 5000}, "rss_mb": {"10000": memory}, "steps": 1500})
    assert "| 10,000 | 5,000 | 1.0 | 2.0 | 3.0 |" in queues
    assert "after 1,500 steps, MB" in queues


def test_latencies_have_a_table() -> None:
    waited = {"p50_s": 1.146, "p99_s": 5.4, "mean_s": 1.5}
    run = {"shape": "tiny", "dtype": "int8", "rate": 1.5, "batch": 8, "machine": "A CPU", "taken": "2026-11-21"}
    table = small_table(run | {"asynchronous": waited, "barrier": waited | {"p50_s": 5.6}})
    assert "| tiny, int8, 1.5 elements/s | p50, s | p99, s | mean, s |" in table
    assert "| `Generate` | 1.15 | 5.40 | 1.50 |" in table
    assert "| batches of 8 | 5.60 |" in table


def test_what_constraints_cost_has_a_table() -> None:
    side = {
        "tokens_per_s": {"free": 100.0, "mixed": 99.0, "constrained": 104.0},
        "relative": {"free": 1.0, "mixed": 0.99, "constrained": 1.04},
        "rounds": {"free": [90.0, 100.0, 101.0], "mixed": [99.0], "constrained": [104.0]},
    }
    run = {"shape": "tiny", "dtype": "int8", "batch_size": 2, "constraint": "regex", "machine": "A", "taken": "B"}
    table = small_table(run | {"sides": {"millrace": side}})
    assert "| tiny, int8, 2 requests, regex: tokens/s | free | mixed | constrained |" in table
    assert "| millrace | 100 (90–101) | 99 (99–99), 0.990 of free | 104 (104–104), 1.040 of free |" in table
