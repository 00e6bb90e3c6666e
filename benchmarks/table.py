"""The tables of figures in README.md and of four pages of docs, from the files that keep them.

    python -m benchmarks.table           # writes them
    python -m benchmarks.table --check   # exits with 1 if others stand there

A table stands between `<!-- benchmarks/results/NAME.json -->` and `<!-- end -->`, and is left as it is where there is
no such file. Nothing in it is written by hand.
"""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from benchmarks.command_line import command_line
from benchmarks.contenders import DTYPES, GEMM_BOUND
from benchmarks.duels import duel_tables, pairs
from benchmarks.results import Row, read
from benchmarks.small_tables import small_table

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ("explanation/benchmarks.md", "explanation/scale.md", "reference/engines.md", "how-to/many-models.md")
PAGES = (README, *(ROOT / "docs" / name for name in DOCS))
_BLOCK = re.compile(r"(<!-- (benchmarks/results/[\w-]+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(text: str, root: Path = ROOT) -> str:
    """`text` with each block as its file under `root` gives it."""

    def block(match: re.Match[str]) -> str:
        file = root / match[2]
        return f"{match[1]}\n{_of_file(file)}\n{match[3]}" if file.exists() else match[0]

    return _BLOCK.sub(block, text)


def _of_file(file: Path) -> str:
    figures = json.loads(file.read_text(encoding="utf-8"))
    return tables(read(file)) if "rows" in figures else small_table(figures)


def tables(rows: list[Row]) -> str:
    """One table for each shape and workload, then what they were taken with; ends with a line break."""

    def place(row: Row) -> tuple[str, str]:
        return row.match.shape, row.match.workload

    groups = itertools.groupby(sorted(rows, key=place), key=place)
    are_duels = any(pairs(rows))
    parts = duel_tables(rows) if are_duels else [_table(*where, list(group)) for where, group in groups]
    return "\n".join([*parts, _circumstances(rows)])


def _table(shape: str, workload: str, rows: list[Row]) -> str:
    cells = {(row.engine, row.match.dtype): row for row in rows}
    dtypes = [dtype for dtype in DTYPES if any(row.match.dtype == dtype for row in rows)]
    engines = list(dict.fromkeys(row.engine for row in rows))
    best = {dtype: max(row.tokens_per_s for row in _measured(rows) if row.match.dtype == dtype) for dtype in dtypes}
    lines = [[f"{shape}, {workload}: tokens/s", *dtypes], ["---", *("---" for _ in dtypes)]]
    for engine in engines:
        lines.append([engine, *(_cell(cells.get((engine, dtype)), best[dtype]) for dtype in dtypes)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _measured(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.engine != GEMM_BOUND] or list(rows)


def _cell(row: Row | None, best: float) -> str:
    if row is None:
        return "–"
    rate = f"{row.tokens_per_s:,.0f}"
    spread = f" ({min(row.rounds):,.0f}–{max(row.rounds):,.0f})" if len(row.rounds) > 1 else ""
    rate = f"**{rate}**" if row.tokens_per_s == best else rate
    memory = "" if row.peak_rss_mb is None else f", {row.peak_rss_mb:,.0f} MB"
    processors = "" if row.processor_s is None else f", {row.processor_s:,.1f} s"
    return f"{rate}{spread}{memory}{processors}"


def _circumstances(rows: list[Row]) -> str:
    rounds = sorted({len(row.rounds) for row in rows})
    versions = sorted({f"{name} {version}" for row in rows for name, version in row.versions.items()})
    machines = sorted({row.machine for row in rows if row.machine})
    days = sorted({row.taken for row in rows if row.taken})
    times = " or ".join(map(str, rounds))
    is_counted = any(row.processor_s is not None for row in rows)
    of_all = (
        "peak memory and processor time of a round, of all processes" if is_counted else "peak memory of all processes"
    )
    said = [
        f"Medians of {times} interleaved rounds (lowest–highest), {of_all}",
        *(f"on {machine}" for machine in machines),
        *([", ".join(versions)] if versions else []),
        *([f"taken {', '.join(days)}"] if days else []),
    ]
    return textwrap.fill("; ".join(said) + ".", 100, break_on_hyphens=False) + "\n"


def main() -> None:
    """Write the tables, or check them."""
    parser = command_line("table", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if others stand there")
    only_check = parser.parse_args().check
    for page in PAGES:
        now = page.read_text(encoding="utf-8")
        then = rendered(now)
        if only_check and now != then:
            raise SystemExit(f"{page}: its tables differ from benchmarks/results")
        if now != then:
            page.write_text(then, encoding="utf-8")


if __name__ == "__main__":
    main()
