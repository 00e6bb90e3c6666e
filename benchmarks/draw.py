"""Draws the figures that result files keep: throughput by engine and dtype, starts, one run over time, a simulation.

    python -m benchmarks.draw                                    # benchmarks/results/*.json into docs/plots
    python -m benchmarks.draw out/timeline.json --images out

A file of rows (benchmarks.engine, benchmarks.pipeline) gives NAME-SHAPE.png for each shape in it, one of starts
(benchmarks.start), a timeline (benchmarks.timeline), growing jobs (benchmarks.growth) and a part of a simulation
(benchmarks.simulation) NAME.png; what has no picture is passed over, with a line. Needs matplotlib (the extra `bench`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES, GEMM_BOUND
from benchmarks.results import Row, read
from benchmarks.simulation_plots import simulated
from benchmarks.timeline import Timeline, percentile

ROOT = Path(__file__).parents[1]
COLOURS = dict(zip(DTYPES, ("#0072B2", "#E69F00", "#009E73"), strict=True))
"""Colours of Okabe and Ito's palette, which the colour-blind tell apart."""
DARK, LIGHT = "#333333", "#56B4E9"
_IDLE = 1e-3
"""Seconds between two steps from which on the engine had nothing to do."""
WINDOW = 20
"""Requests that one point of a moving percentile covers."""


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
    """How full each step's batch is, its tokens and time, and the latency of requests as they end."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    batch, tokens, times, latency = figure.subplots(4, 1, sharex=True)
    batch.plot(*held(line, [100 * each / line.max_num_seqs for each in line.sequences]), color=DARK)
    batch.set(ylabel=f"% of {line.max_num_seqs} sequences", ylim=(0, 105))
    tokens.fill_between(*held(line, line.tokens), color=LIGHT, label="prompt tokens")
    tokens.fill_between(*held(line, line.sampled), color=DARK, label="rows that give a token")
    tokens.set(ylabel="tokens in the step", ylim=(0, None))
    tokens.legend(frameon=False)
    times.scatter(line.ended_at, line.step_ms, s=6, color=DARK)
    times.set(ylabel="step, ms", ylim=(0, None))
    moving = moving_percentiles(line, (50, 99))
    for percent, colour in ((50, COLOURS["float32"]), (99, COLOURS["bfloat16"])):
        latency.plot(line.finished_at, moving[percent], color=colour, label=f"p{percent} of the {WINDOW} last to end")
    latency.set(ylabel="latency, s", xlabel="seconds", ylim=(0, None))
    latency.legend(frameon=False)
    for panel in (batch, tokens, times, latency):
        _plain(panel)
        panel.set_xlim(0, line.ended_at[-1])
    figure.suptitle(f"millrace, {line.title}")
    figure.savefig(path, dpi=150)


def held(line: Timeline, values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Points of a line that is at a step's value from its begin to its end, and at 0 where no step runs."""
    xs, ys, before = [0.0], [0.0], 0.0
    for ended, took, value in zip(line.ended_at, line.step_ms, values, strict=True):
        began = max(ended - took / 1000, before)
        if began - before > _IDLE:
            xs += [before, began]
            ys += [0.0, 0.0]
        xs += [began, ended]
        ys += [value, value]
        before = ended
    return xs, ys


def moving_percentiles(line: Timeline, percents: Sequence[int]) -> dict[int, list[float]]:
    """Percentiles of the latency of the last WINDOW requests: per percent a list, a value at each request's end."""
    windows = [line.latency[max(end - WINDOW, 0) : end] for end in range(1, len(line.latency) + 1)]
    return {percent: [percentile(window, percent) for window in windows] for percent in percents}


def starts(found: list[dict[str, Any]], path: Path) -> None:
    """Bars of seconds to the first token, and of peak memory, in which weights and KV cache are set apart."""
    figure = Figure(figsize=(10, 1.2 + 0.35 * len(found)), layout="constrained")
    seconds, memory = figure.subplots(1, 2, sharey=True)
    names = [f"{each['engine']}, {each['shape']}, {each['dtype']}" for each in found]
    drawn = seconds.barh(names, [each["first_token_s"] for each in found], color=DARK)
    seconds.bar_label(drawn, fmt="{:.1f}", padding=3, fontsize=8)
    seconds.set(xlabel="seconds to the first token")
    weights, cache = ([each["memory"].get(part, 0.0) for each in found] for part in ("weights_mb", "kv_mb"))
    both = [sum(pair) for pair in zip(weights, cache, strict=True)]
    drawn = memory.barh(names, [each["peak_rss_mb"] for each in found], color=LIGHT, label="peak of the process")
    memory.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=8)
    memory.barh(names, both, color=COLOURS["bfloat16"], label="of it KV cache")
    memory.barh(names, weights, color=DARK, label="of it weights")
    memory.set(xlabel="MB")
    seconds.invert_yaxis()
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    for panel in (seconds, memory):
        panel.margins(x=0.15)
        _plain(panel)
    figure.savefig(path, dpi=150)


def growth(sizes: list[dict[str, Any]], path: Path) -> None:
    """The processor time of a further row by the size of the job, and what its processes hold in the largest job."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    further = [(size["rows"], size["next_ms_a_row"]) for size in sizes if size["next_ms_a_row"] is not None]
    cost.plot(*zip(*further, strict=True), marker="o", color=DARK)
    cost.set(xscale="log", ylim=(0, None), xlabel="rows", ylabel="processor time of a further row, ms")
    colours = (*COLOURS.values(), DARK, LIGHT)
    for (role, held), colour in zip(sizes[-1]["held_mb"].items(), colours, strict=False):
        memory.plot(*zip(*held, strict=True), color=colour, label=role)
    memory.set(ylim=(0, None), xlabel=f"seconds of {sizes[-1]['rows']:,} rows", ylabel="MB")
    memory.legend(frameon=False)
    for panel in (cost, memory):
        _plain(panel)
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
    parser.add_argument("files", nargs="*", type=Path, help="of results; without any, all of benchmarks/results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs/plots", help="folder to draw into")
    arguments = parser.parse_args()
    arguments.images.mkdir(parents=True, exist_ok=True)
    for file in arguments.files or sorted((ROOT / "benchmarks/results").glob("*.json")):
        for path in draw(file, arguments.images):
            print(path)


def draw(file: Path, images: Path) -> list[Path]:
    """Draw what the file holds; returns the images' paths."""
    contents, path = json.loads(file.read_text(encoding="utf-8")), images / f"{file.stem}.png"
    if "rows" in contents:
        return _throughputs(read(file), images, file.stem)
    if "starts" in contents:
        starts(contents["starts"], path)
    elif len(contents.get("sizes", [])) > 1 and "held_mb" in contents["sizes"][-1]:
        growth(contents["sizes"], path)
    elif "step_ms" in contents:
        timeline(Timeline(**contents), path)
    elif "part" not in contents or not simulated(contents["part"], contents["simulated"], path):
        print(f"{file} has no picture")
        return []
    return [path]


def _throughputs(rows: list[Row], images: Path, name: str) -> list[Path]:
    paths = []
    for shape in dict.fromkeys(row.match.shape for row in rows):
        paths.append(images / f"{name}-{shape}.png")
        throughput([row for row in rows if row.match.shape == shape], paths[-1])
    return paths


if __name__ == "__main__":
    main()
