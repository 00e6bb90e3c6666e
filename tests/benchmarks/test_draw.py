"""Plots are drawn from result files alone."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.contenders import GEMM_BOUND
from benchmarks.draw import WINDOW, draw, held, main, moving_percentiles
from benchmarks.results import Match, Row, keep
from benchmarks.timeline import Timeline


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return int(image.width), int(image.height)


def test_each_shape_of_a_result_file_is_a_picture(tmp_path: Path) -> None:
    rows = [
        Row(Match(shape, workload, dtype), engine, 10.0, [10.0], None)
        for shape in ("one", "two")
        for workload in ("skewed", "uniform")
        for dtype, engine in (("float32", "millrace"), ("int8", "millrace"), ("int8", GEMM_BOUND), ("float32", "peer"))
    ]
    keep(tmp_path / "results.json", rows)
    drawn = draw(tmp_path / "results.json", tmp_path)

    assert [path.name for path in drawn] == ["results-one.png", "results-two.png"]
    assert all(min(_size(path)) > 200 for path in drawn)


def test_a_picture_grows_with_the_engines_in_it(tmp_path: Path) -> None:
    sizes = []
    for engines in (("a",), ("a", "b", "c")):
        rows = [Row(Match("one", "skewed", "float32"), engine, 10.0, [10.0], 1.0) for engine in engines]
        keep(tmp_path / "results.json", rows)
        sizes.append(_size(draw(tmp_path / "results.json", tmp_path)[0]))

    assert sizes[0][1] < sizes[1][1]


def test_a_timeline_is_a_picture(tmp_path: Path) -> None:
    line = Timeline(
        "tiny", [0.1, 0.2, 0.3], [100.0, 90.0, 80.0], [2, 2, 1], [9, 2, 1], [1, 2, 1], [0.2, 0.3], [0.2, 0.3], 8
    )
    (tmp_path / "timeline.json").write_text(json.dumps(asdict(line)))
    (path,) = draw(tmp_path / "timeline.json", tmp_path)

    assert path.name == "timeline.png"
    assert min(_size(path)) > 200


def test_between_steps_that_are_apart_the_line_is_at_zero() -> None:
    line = Timeline("tiny", ended_at=[1.0, 2.0, 5.0], step_ms=[1000.0, 1000.0, 1000.0])
    xs, ys = held(line, [3.0, 4.0, 5.0])
    assert list(zip(xs, ys, strict=True))[1:] == [(0, 3), (1, 3), (1, 4), (2, 4), (2, 0), (4, 0), (4, 5), (5, 5)]


def test_latency_is_of_the_requests_that_ended_last() -> None:
    line = Timeline("tiny", latency=[100.0] * WINDOW + [float(n) for n in range(1, WINDOW + 1)])
    moving = moving_percentiles(line, (50, 99))
    assert moving[50][WINDOW - 1] == 100.0
    assert (moving[50][-1], moving[99][-1]) == (WINDOW / 2, WINDOW)


def test_starts_are_a_picture(tmp_path: Path) -> None:
    start = {"engine": "a", "shape": "tiny", "dtype": "int8", "first_token_s": 2.0, "peak_rss_mb": 9.0}
    (tmp_path / "start.json").write_text(json.dumps({"starts": [start | {"memory": {"weights_mb": 3.0}}]}))
    (path,) = draw(tmp_path / "start.json", tmp_path)

    assert path.name == "start.png"
    assert min(_size(path)) > 200


def test_without_files_all_results_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path / "benchmarks/results/a.json", [Row(Match("one", "skewed", "float32"), "peer", 10.0, [10.0], None)])
    (tmp_path / "benchmarks/results/b.json").write_text("{}")
    monkeypatch.setattr("benchmarks.draw.ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["draw"])
    main()
    assert [path.name for path in (tmp_path / "docs/benchmarks").iterdir()] == ["a-one.png"]
