"""Plots are drawn from result files alone."""

import json
from dataclasses import asdict
from pathlib import Path

from PIL import Image

from benchmarks.contenders import GEMM_BOUND
from benchmarks.draw import draw
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


def test_a_timeline_is_a_picture(tmp_path: Path) -> None:
    line = Timeline(
        "tiny", [0.1, 0.2, 0.3], [100.0, 90.0, 80.0], [2, 2, 1], [9, 2, 1], [1, 2, 1], [0.2, 0.3], [0.2, 0.3], 8
    )
    (tmp_path / "timeline.json").write_text(json.dumps(asdict(line)))
    (path,) = draw(tmp_path / "timeline.json", tmp_path)

    assert path.name == "timeline.png"
    assert min(_size(path)) > 200


def test_starts_are_a_picture(tmp_path: Path) -> None:
    start = {"engine": "a", "shape": "tiny", "dtype": "int8", "first_token_s": 2.0, "peak_rss_mb": 9.0}
    (tmp_path / "start.json").write_text(json.dumps({"starts": [start | {"memory": {"weights_mb": 3.0}}]}))
    (path,) = draw(tmp_path / "start.json", tmp_path)

    assert path.name == "start.png"
    assert min(_size(path)) > 200


def test_growing_jobs_are_a_picture(tmp_path: Path) -> None:
    line = {"launcher": [[0.0, 170.0], [5.0, 180.0]], "manager": [[1.0, 30.0], [5.0, 35.0]]}
    sizes = [{"rows": 10, "next_ms_a_row": None, "held_mb": {}}, {"rows": 100, "next_ms_a_row": 0.7, "held_mb": line}]
    (tmp_path / "growth.json").write_text(json.dumps({"sizes": sizes}))
    (path,) = draw(tmp_path / "growth.json", tmp_path)

    assert path.name == "growth.png"
    assert min(_size(path)) > 200
    (tmp_path / "growth.json").write_text(json.dumps({"sizes": []}))
    assert draw(tmp_path / "growth.json", tmp_path) == []
