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

    assert [path.name for path in drawn] == ["throughput-one.png", "throughput-two.png"]
    assert all(min(_size(path)) > 200 for path in drawn)


def test_a_picture_grows_with_the_engines_in_it(tmp_path: Path) -> None:
    sizes = []
    for engines in (("a",), ("a", "b", "c")):
        rows = [Row(Match("one", "skewed", "float32"), engine, 10.0, [10.0], 1.0) for engine in engines]
        keep(tmp_path / "results.json", rows)
        sizes.append(_size(draw(tmp_path / "results.json", tmp_path)[0]))

    assert sizes[0][1] < sizes[1][1]


def test_a_timeline_is_a_picture(tmp_path: Path) -> None:
    line = Timeline("tiny", [0.1, 0.2, 0.3], [100.0, 90.0, 80.0], [2, 2, 1], [9, 2, 1], [1, 2, 1], [0.2, 0.3])
    (tmp_path / "timeline.json").write_text(json.dumps(asdict(line)))
    (path,) = draw(tmp_path / "timeline.json", tmp_path)

    assert path.name == "timeline.png"
    assert min(_size(path)) > 200
