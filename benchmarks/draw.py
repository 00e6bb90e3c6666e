"""Draws the figures that result files keep: throughput by engine and dtype, and how one run went over time.

    python -m benchmarks.draw benchmarks/results/engine.json out/timeline.json --images docs/img

A file of rows gives throughput-SHAPE.png for each shape in it, a timeline's gives timeline.png. Needs matplotlib
(`pip install millrace[bench]`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES, GEMM_BOUND
from benchmarks.results import Row, read
from benchmarks.timeline import Timeline

COLOURS = dict(zip(DTYPES, ("#0072B2", "#E69F00", "#009E73"), strict=True))
"""Of Okabe and Ito's palette, which the colour-blind tell apart."""
DARK, LIGHT = "#333333", "#56B4E9"


def throughput(rows: list[Row], path: Path) -> None:
    """Bars of tokens a second, one panel a workload; a line across the bars of millrace is what its products allow."""
    workloads = list(dict.fromkeys(row.match.workload for row in rows))
    engines = [engine for engine in dict.fromkeys(row.engine for row in rows) if engine != GEMM_BOUND]
    dtypes = [dtype for dtype in DTYPES if any(row.match.dtype == dtype for row in rows)]
    height = 1.2 + 0.3 * len(engines) * len(dtypes)
    figure = Figure(figsize=(5.2 * len(workloads), height), layout="constrained")
    panels = figure.subplots(1, len(workloads), sharey=True, squeeze=False)[0]
    for panel, workload in zip(panels, workloads, strict=True):
        cells = {(row.engine, row.match.dtype): row for row in rows if row.match.workload == workload}
        _bars(panel, cells, engines, dtypes)
        panel.set(title=workload, xlabel="tokens/s", yticks=range(len(engines)), yticklabels=engines)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(rows[0].match.shape)
    figure.savefig(path, dpi=150)


def timeline(line: Timeline, path: Path) -> None:
    """Sequences and tokens of each step, its time, and when requests were done."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    batch, tokens, times, done = figure.subplots(4, 1)
    batch.step(line.ended_at, line.sequences, where="pre", color=DARK)
    batch.set(ylabel="sequences in the step", ylim=(0, None))
    sampled = line.sampled
    tokens.fill_between(line.ended_at, line.tokens, step="pre", color=LIGHT, label="prompt tokens")
    tokens.fill_between(line.ended_at, sampled, step="pre", color=DARK, label="rows that give a token")
    tokens.set(ylabel="tokens in the step", ylim=(0, None))
    tokens.legend(frameon=False)
    times.scatter(line.ended_at, line.step_ms, s=6, color=DARK)
    times.set(ylabel="step, ms", ylim=(0, None))
    done.hist(line.latency, bins=30, color=COLOURS["float32"])
    done.set(ylabel="requests done", xlabel="seconds since all requests were added")
    for panel in (batch, tokens, times, done):
        _plain(panel)
        panel.set_xlim(0, line.ended_at[-1])
    figure.suptitle(f"millrace, {line.title}")
    figure.savefig(path, dpi=150)


def _bars(panel: Any, cells: dict[tuple[str, str], Row], engines: list[str], dtypes: list[str]) -> None:
    thickness = 0.8 / len(dtypes)
    for number, dtype in enumerate(dtypes):
        offset = (number - (len(dtypes) - 1) / 2) * thickness
        found = [(place, cells[engine, dtype]) for place, engine in enumerate(engines) if (engine, dtype) in cells]
        places, rates = [place + offset for place, _ in found], [row.tokens_per_s for _, row in found]
        drawn = panel.barh(places, rates, thickness, color=COLOURS[dtype], label=dtype)
        panel.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=8)
        bound = cells.get((GEMM_BOUND, dtype))
        if bound and "millrace" in engines:
            middle = engines.index("millrace") + offset
            ends = middle - thickness / 2, middle + thickness / 2
            panel.vlines(bound.tokens_per_s, *ends, color=DARK, linewidth=2, label=_once(panel, "products alone"))
    panel.margins(x=0.15)
    _plain(panel)


def _once(panel: Any, label: str) -> str:
    return label if label not in panel.get_legend_handles_labels()[1] else "_"


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw each file that the command line names."""
    parser = command_line("draw", __doc__)
    parser.add_argument("files", nargs="+", type=Path, help="of rows, or of a timeline")
    parser.add_argument("--images", type=Path, default=Path("docs/img"), help="folder to draw into")
    arguments = parser.parse_args()
    arguments.images.mkdir(parents=True, exist_ok=True)
    for file in arguments.files:
        for path in draw(file, arguments.images):
            print(path)


def draw(file: Path, images: Path) -> list[Path]:
    """Draw what the file holds; returns the images' paths."""
    contents = json.loads(file.read_text(encoding="utf-8"))
    if "rows" not in contents:
        timeline(Timeline(**contents), images / "timeline.png")
        return [images / "timeline.png"]
    rows = read(file)
    paths = []
    for shape in dict.fromkeys(row.match.shape for row in rows):
        paths.append(images / f"throughput-{shape}.png")
        throughput([row for row in rows if row.match.shape == shape], paths[-1])
    return paths


if __name__ == "__main__":
    main()
