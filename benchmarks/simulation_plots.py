"""Plots of what benchmarks.simulation kept, one a part that has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.fleet.designs import DESIGNS, MILLRACE, POOL, STATIC

_COLOURS = {MILLRACE: "#0072B2", STATIC: "#E69F00", POOL: "#009E73"}
"""Colours of Okabe and Ito's palette, as draw.py has them."""
_Run = dict[str, Any]


def simulated(part: str, runs: list[_Run], path: Path) -> bool:
    """Draw a part; returns whether it has a picture."""
    if part not in _PLOTS:
        return False
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    _PLOTS[part](figure, runs)
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return True


def _scaling(figure: Figure, runs: list[_Run]) -> None:
    speed, efficiency = figure.subplots(1, 2)
    for design in DESIGNS:
        found = [run for run in runs if run["design"] == design]
        workers, style = [run["workers"] for run in found], {"marker": "o", "color": _COLOURS[design], "label": design}
        speed.plot(workers, [run["rows"] / _work_s(run) for run in found], **style)
        efficiency.plot(workers, [run["efficiency_up"] for run in found], **style)
    speed.set(xscale="log", yscale="log", xlabel="machines", ylabel="rows/s once up")
    efficiency.set(xscale="log", ylim=(0, 1), xlabel="machines", ylabel="efficiency once up")
    efficiency.legend(frameon=False)


def _work_s(run: _Run) -> float:
    """Seconds in which machines were up, of one machine."""
    return float(run["efficiency"] * run["seconds"] / run["efficiency_up"])


def _job(figure: Figure, runs: list[_Run]) -> None:
    fixed = [run for run in runs if run["initial_workers"] is None]
    hours, price = figure.subplots(1, 2)
    workers = [run["workers"] for run in fixed]
    hours.plot(workers, [run["seconds"] / 3600 for run in fixed], marker="o", color=_COLOURS[MILLRACE])
    price.plot(workers, [run["per_million_rows"] for run in fixed], marker="o", color=_COLOURS[MILLRACE])
    hours.set(xscale="log", yscale="log", xlabel="machines", ylabel="hours")
    price.set(xscale="log", yscale="log", xlabel="machines", ylabel="USD a million rows")


def _spot(figure: Figure, runs: list[_Run]) -> None:
    twice, hours = figure.subplots(1, 2)
    for design, size, line in ((MILLRACE, 100, "-"), (MILLRACE, 1000, "--"), (POOL, 1, "-")):
        found = [run for run in runs if (run["design"], run["bundle_rows"]) == (design, size)]
        label = design if size == 1 else f"{design}, bundles of {size:,}"
        style = {"marker": "o", "linestyle": line, "color": _COLOURS[design], "label": label}
        deaths = [run["deaths_per_hour"] for run in found]
        twice.plot(deaths, [100 * run["twice"] for run in found], **style)
        hours.plot(deaths, [run["seconds"] / 3600 for run in found], **style)
    twice.set(xlabel="deaths of a machine an hour", ylabel="% of tokens computed twice")
    hours.set(xlabel="deaths of a machine an hour", ylabel="hours", ylim=(0, None))
    twice.legend(frameon=False)


def _streams(figure: Figure, runs: list[_Run]) -> None:
    most = max(run["workers"] for run in runs)
    for panel, percent in zip(figure.subplots(1, 2), ("p50_s", "p99_s"), strict=True):
        for design in DESIGNS:
            found = [run for run in runs if (run["design"], run["workers"]) == (design, most)]
            loads = [run["load"] for run in found]
            panel.plot(loads, [run[percent] for run in found], marker="o", color=_COLOURS[design], label=design)
        title = f"{most:,} machines"
        panel.set(yscale="log", xlabel="load", ylabel=f"{percent.removesuffix('_s')}, s", title=title)
    figure.axes[0].legend(frameon=False)


_PLOTS: dict[str, Callable[[Figure, list[_Run]], None]] = {
    "scaling": _scaling,
    "job": _job,
    "spot": _spot,
    "streams": _streams,
}
