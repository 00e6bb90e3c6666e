"""One worker's speed from a file of our benchmarks' figures (benchmarks/results/*.json)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.errors import ConfigError

from ..flags.file_flags import read_text

_TAKES = "; takes a file of benchmarks/results in millrace's repository, or one that a benchmark wrote by its --results"


class _Figure(msgspec.Struct, frozen=True):
    match: dict[str, str]
    engine: str
    tokens_per_s: float
    machine: str = ""
    taken: str = ""

    @property
    def names(self) -> dict[str, str]:
        """Names and values that tell this figure from others."""
        return self.match | {"engine": self.engine}

    def __str__(self) -> str:
        which = ", ".join(f"{name}={value}" for name, value in self.names.items())
        return f"{which}; on {self.machine}; taken {self.taken}"


class _Figures(msgspec.Struct, frozen=True):
    rows: list[_Figure]


def measured_speed(path: Path, where: str) -> _Figure:
    """The one figure that `where` (`name=value,…`) picks; raises ConfigError for none and for several."""
    wanted = dict(_pair(part) for part in where.split(",") if part)
    text = read_text("--results", str(path), _TAKES)
    try:
        figures = json_decoder(_Figures).decode(text).rows
    except msgspec.DecodeError as error:
        raise ConfigError(f"--results {path}: is no file of figures: {error}{_TAKES}") from None
    found = [figure for figure in figures if wanted.items() <= figure.names.items()]
    if len(found) == 1:
        return found[0]
    others = found or figures
    names = {name: sorted({each.names[name] for each in others if name in each.names}) for name in others[0].names}
    choice = "; ".join(f"{name}: {', '.join(values)}" for name, values in names.items() if len(values) > 1)
    raise ConfigError(f"--where {where!r}: picks {len(found)} of {len(figures)} figures; say which ({choice})")


def _pair(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals:
        raise ConfigError(f"--where {part}: takes name=value, several with commas")
    return name.strip(), value.strip()
