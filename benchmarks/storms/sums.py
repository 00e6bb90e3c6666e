"""Parts of one experiment, each a job with blows of its own, added up; the file that keeps them and their sum."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ADDED = ("rows", "missed", "lost", "doubled", "dead_letters", "texts_changed", "launchers", "seconds")
_PER_BLOW = ("seconds", "processor_seconds")


def added_up(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all parts together. `stalls`: how often, median, mean and highest seconds of each kind."""
    struck: Counter[str] = Counter()
    stalls: defaultdict[str, list[float]] = defaultdict(list)
    for part in parts:
        struck.update(part["struck"])
        for kind, seconds in part["stalls"].items():
            stalls[kind] += seconds
    return {
        "parts": len(parts),
        "struck_in_all": struck.total(),
        "struck": dict(sorted(struck.items())),
        **{name: round(sum(part[name] for part in parts), 1) for name in _ADDED},
        "ended_with": sorted({part["statuses"][-1] for part in parts}),
        **{f"{name}_per_blow": _per_blow(parts, name) for name in _PER_BLOW},
        "tokens": {name: sum(part["tokens"][name] for part in parts) for name in parts[0]["tokens"]},
        "left_behind": sum(len(part["left_behind"]) for part in parts),
        "stalls": {kind: _described(seconds) for kind, seconds in sorted(stalls.items())},
    }


def _per_blow(parts: Sequence[dict[str, Any]], name: str) -> float | None:
    """What a blow cost on average beyond the undisturbed jobs; None if a part has no such figure."""
    if any(part[name] is None or part[f"undisturbed_{name}"] is None for part in parts):
        return None
    struck = sum(sum(part["struck"].values()) for part in parts)
    cost: float = sum(part[name] - part[f"undisturbed_{name}"] for part in parts)
    return round(cost / max(1, struck), 2)


def _described(seconds: Sequence[float]) -> list[float]:
    return [
        len(seconds),
        *(round(value, 2) for value in (statistics.median(seconds), statistics.mean(seconds), max(seconds))),
    ]


def parts_in(path: Path | None) -> list[dict[str, Any]]:
    """The parts that a file has; none if there is no file."""
    if path is None or not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get("each", [])
    return found
