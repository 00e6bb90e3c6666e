"""Result files keep what was played together together."""

from pathlib import Path

from benchmarks.results import Match, Row, describe_machine, keep, read

FIRST, SECOND = Match("tiny", "skewed", "float32"), Match("tiny", "uniform", "float32")


def _row(match: Match, engine: str, rate: float = 1.0) -> Row:
    return Row(match, engine, rate, [rate], 10.0, versions={"torch": "2"})


def test_rows_come_back_as_they_were_kept(tmp_path: Path) -> None:
    rows = [_row(FIRST, "a"), _row(SECOND, "b", 2.5)]
    keep(tmp_path / "new" / "results.json", rows)

    assert read(tmp_path / "new" / "results.json") == rows


def test_new_rows_replace_all_of_their_match_and_leave_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep(path, [_row(FIRST, "a"), _row(FIRST, "b"), _row(SECOND, "a")])
    keep(path, [_row(FIRST, "a", 7.0)])

    assert read(path) == [_row(SECOND, "a"), _row(FIRST, "a", 7.0)]


def test_a_machine_is_its_processor_cores_memory_and_features(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A CPU\nflags\t\t: fpu avx512_bf16 avx2\n")
    described = describe_machine(tmp_path / "cpuinfo")

    assert described.startswith("A CPU, ")
    assert described.endswith("GiB, avx2 avx512_bf16")
