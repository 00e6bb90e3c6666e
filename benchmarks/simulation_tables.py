"""Tables of what benchmarks.simulation kept: lines are settings, columns are designs or figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_Run = dict[str, Any]
_ABSENT = "–"


def simulated_lines(part: str, runs: list[_Run]) -> list[list[str]]:
    """Head, rule and lines of a part's table."""
    head, *lines = _LINES[part](runs)
    return [head, ["---"] * len(head), *lines]


def simulated_on(figures: dict[str, Any]) -> str:
    """What was simulated, in a sentence."""
    return f"Simulated: lengths of `{figures['workload']}`, seed {figures['seed']}, machines of {figures['worker']}."


def _validation(runs: list[_Run]) -> list[list[str]]:
    lines = [
        [run["of"], f"{run['measured']:,.4g}", f"{run['simulated']:,.4g}", f"{100 * run['off']:+.0f} %"] for run in runs
    ]
    return [["one machine", "measured", "simulated", "off"], *lines]


def _scaling(runs: list[_Run]) -> list[list[str]]:
    def cell(run: _Run) -> str:
        return f"{run['rows_per_s']:,.1f}, {run['efficiency_up']:.2f}"

    return _by_column(runs, ("workers",), "design", cell, "rows/s with the start, efficiency once up")


def _job(runs: list[_Run]) -> list[list[str]]:
    alone = runs[0]["seconds"]
    lines = [
        [
            f"{run['workers']:,}" if run["initial_workers"] is None else "as the autoscaler asks",
            _time(run["seconds"]),
            f"{alone / run['seconds']:,.0f}",
            f"{run['efficiency']:.3f}",
            f"{run['efficiency_up']:.3f}",
            f"{run['per_million_rows']:,.2f}",
        ]
        for run in runs
    ]
    head = ["machines", "time", "times as fast", "efficiency", "efficiency once up", "USD a million rows"]
    return [head, *lines]


def _bundles(runs: list[_Run]) -> list[list[str]]:
    named = [run | {"split": "with splitting" if run["splitting"] else "without"} for run in runs]

    def cell(run: _Run) -> str:
        return f"{run['efficiency_up']:.2f}"

    return _by_column(named, ("bundle_rows",), "split", cell, "efficiency once up")


def _spot(runs: list[_Run]) -> list[list[str]]:
    def name(run: _Run) -> str:
        return str(run["design"]) + ("" if run["bundle_rows"] == 1 else f", bundles of {run['bundle_rows']:,}")

    def cell(run: _Run) -> str:
        return f"{100 * run['twice']:.1f} %, {_time(run['seconds'])}, {run['per_million_rows']:.2f} ({run['deaths']})"

    named = [run | {"named": name(run)} for run in runs]
    return _by_column(named, ("deaths_per_hour",), "named", cell, "tokens twice, time, USD a million rows (deaths)")


def _streams(runs: list[_Run]) -> list[list[str]]:
    def cell(run: _Run) -> str:
        return f"{run['p50_s']:.2f} / {run['p99_s']:.1f}"

    return _by_column(runs, ("workers", "load"), "design", cell, "p50 / p99, s")


def _prefixes(runs: list[_Run]) -> list[list[str]]:
    def cell(run: _Run) -> str:
        return f"{run['prefix_tokens'] / run['rows']:.1f}, {run['efficiency_up']:.2f}"

    return _by_column(runs, ("prefixes",), "design", cell, "their tokens computed a row, efficiency once up")


def _plan(runs: list[_Run]) -> list[list[str]]:
    lines = [
        [
            run["case"],
            f"{run['workers']:,}",
            f"{run['rows']:,}",
            *(f"{run[key]:.2f}" for key in ("simulated_hours", "plan_hours_without_margin", "plan_hours")),
            f"{100 * run['off']:+.0f} %",
        ]
        for run in runs
    ]
    head = ["rows", "machines", "number of rows", "simulated, h", "plan, no margin, h", "plan, h", "plan is off"]
    return [head, *lines]


_LINES: dict[str, Callable[[list[_Run]], list[list[str]]]] = {
    "validation": _validation,
    "scaling": _scaling,
    "job": _job,
    "bundles": _bundles,
    "spot": _spot,
    "streams": _streams,
    "prefixes": _prefixes,
    "plan": _plan,
}
_NAMES = {
    "workers": "machines",
    "load": "load",
    "bundle_rows": "rows in a bundle",
    "deaths_per_hour": "deaths of a machine an hour",
    "prefixes": "system prompts",
}


def _by_column(
    runs: list[_Run], settings: tuple[str, ...], column: str, cell: Callable[[_Run], str], what: str
) -> list[list[str]]:
    """A line for each value of `settings`, a column for each of `column`; `what` says what a cell is."""
    columns = _distinct(run[column] for run in runs)
    found = {(*(run[name] for name in settings), run[column]): cell(run) for run in runs}
    head = [
        *(_NAMES[name] for name in settings),
        *(f"{name}: {what}" if name == columns[0] else name for name in columns),
    ]
    lines = [
        [*(f"{value:,}" for value in values), *(found.get((*values, name), _ABSENT) for name in columns)]
        for values in _distinct(tuple(run[name] for name in settings) for run in runs)
    ]
    return [head, *lines]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
