"""One frame of `millrace top`: figures as lines that fit a terminal of any width. Knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import ceil

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from millrace.model_manager.wire.errors import counted
from millrace.model_manager.wire.job_progress import FailedRow, JobProgress, RowLife
from millrace.model_manager.wire.status import EngineStats, JobStatus, ModelStatus
from millrace.serving.window.figures import Figures
from millrace.serving.window.history import Point

from ..edge import plain
from ..job.words import left, rows_of, rows_per_s, tokens_per_s
from ..pages.terminal_lines import BETWEEN, filled
from ..pages.texts import duration

_STEPS = " ▁▂▃▄▅▆▇█"
_SPANS = (("queued", "░", "bright_black"), ("prefill", "▒", "yellow"), ("decode", "█", "blue"))
_STATES = {"ready": "green", "waiting": "yellow", "loading": "yellow", "restarting": "yellow", "failed": "red"}
_WIDE = 90
"""Columns from which on all is shown."""
_USUAL = 72
"""Columns from which on figures are whole: names give way."""
STALE_SECONDS = 5.0
"""Age of what a job says from which on it is told: a job writes once a second."""
_MOST_OF_NAME = 24
"""Columns of a row's name."""
_GAP = 2
"""Columns between two of a table."""
_SHORTEST_BAR, _LONGEST_BAR = 8, 40
_FIXED = 14
"""Lines of a frame beside rows and dead letters, about."""


def frame(figures: Figures, points: Sequence[Point], width: int, height: int = 60) -> RenderableType:
    """All of it; the fewer lines there are, the fewer rows and dead letters."""
    models = figures.status.models if figures.status else []
    taken = _FIXED + 2 * len(models) + 3 * len(figures.jobs)
    room = max((height - taken) // 2, 2)
    return Group(*_parts(figures, points, width, room))


def _parts(figures: Figures, points: Sequence[Point], width: int, room: int) -> Iterator[RenderableType]:
    yield _head(figures)
    yield _now(figures, points, width)
    yield from _titled("models", [_models(figures.status.models, width)] if figures.status else [])
    yield from _titled("jobs", [*_jobs(figures, width), *_others(figures.other_jobs)])
    yield from _titled("latest rows", [_rows(figures.rows[-room:], width)] if figures.rows else [])
    letters: list[RenderableType] = [*map(_letter, reversed(figures.dead_letters[-room:]))]
    yield from _titled("dead letters", [*letters, *_unlisted(figures.jobs)])


def _titled(title: str, parts: Sequence[RenderableType]) -> Iterator[RenderableType]:
    """The parts under a title; nothing if there are none."""
    if parts:
        yield Rule(title, align="left", style="bright_black")
        yield from parts


def _head(figures: Figures) -> Text:
    line = Text("millrace  ", style="bold", no_wrap=True, overflow="ellipsis")
    if figures.status is not None:
        held = seconds_and_bytes(figures.status.uptime, sum(figures.memory.values()))
        return line.append(f"manager {figures.status.pid}, {held}", style="not bold")
    told = f"the manager does not answer: {plain(figures.error)}" if figures.error else "no manager runs"
    return line.append(told, style="not bold red" if figures.error else "not bold yellow")


def seconds_and_bytes(uptime: float, held: int) -> str:
    """Uptime and memory as text: `up 2:03, 1,826 MB in all`."""
    return f"up {duration(uptime)}, {_bytes(held)} in all"


def _now(figures: Figures, points: Sequence[Point], width: int) -> Text:
    rate = f"{figures.tokens_per_s:,.0f} tokens/s"
    ttft = [] if figures.ttft is None else [f"first token {_seconds(figures.ttft)}"]
    rest = "   ".join([f"{figures.running:,} running", f"{figures.waiting:,} waiting", *ttft])
    curve = sparkline([point.tokens_per_s for point in points], max(min(width - len(rate) - len(rest) - 4, 60), 0))
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(rate, style="bold").append(" ").append(curve, style="blue")
    return line.append("   " if curve else "  ").append(rest)


def sparkline(values: Sequence[float], width: int) -> str:
    """The latest values as columns of eighths; as many as fit."""
    shown = values[-width:] if width and len(values) > 1 else []
    top = max(shown, default=0.0)
    return "".join(_STEPS[round(value / top * 8)] if top > 0 else _STEPS[0] for value in shown)


def bar(part: float, width: int) -> str:
    """A part from 0 to 1."""
    full = round(min(max(part, 0.0), 1.0) * width)
    return "━" * full + "─" * (width - full)


def _models(models: Iterable[ModelStatus], width: int) -> Table:
    heads = ("model", "state", "batch", "KV cache", "tokens/s", "memory", *(("",) if width >= _WIDE else ()))
    table = _table(heads, yielding=(0, 6) if width >= _USUAL else ())
    for model in models:
        stats, info = model.stats, model.info
        most = info.max_num_seqs if info else 0
        cells: list[str | Text] = [
            Text(plain(model.model), style="bold", no_wrap=True, overflow="ellipsis"),
            Text(model.state, style=_STATES.get(model.state, "bright_black")),
            f"{ceil(stats.batch)}/{most}" + f" +{stats.waiting}" * bool(stats.waiting),
            _cache(stats, with_bar=width >= _USUAL),
            f"{stats.tokens_per_s:,.0f}",
            _bytes(int(stats.rss_mb * 2**20)),
        ]
        table.add_row(*cells, *([_more(model)] if width >= _WIDE else []))
    return table


def _cache(stats: EngineStats, *, with_bar: bool) -> str:
    if not stats.blocks_total:
        return ""
    part = stats.blocks_held / stats.blocks_total
    return f"{bar(part, _SHORTEST_BAR)} {part:.0%}" if with_bar else f"{part:.0%}"


def _more(model: ModelStatus) -> Text:
    info = model.info
    formats = [info.device, info.dtype, info.quantization, info.kv_cache_dtype] if info else []
    known = dict.fromkeys(each for each in formats if each not in ("", "none"))
    restarts = [f"{model.restarts} restart{'s' * (model.restarts != 1)}"] if model.restarts else []
    told = plain(", ".join([*known, *restarts, f"pid {_pids(model)}"]))
    return Text(told, no_wrap=True, overflow="ellipsis")


def _pids(model: ModelStatus) -> str:
    return ", ".join(map(str, model.pids)) or "-"


def _unlisted(jobs: Sequence[JobProgress]) -> list[Text]:
    """Where dead letters are not known."""
    outputs = ", ".join(_short(job.output) for job in jobs if not job.counted_here)
    told = f"not known here, the workers are other processes: {plain(outputs)}"
    return [Text(told, style="bright_black", no_wrap=True, overflow="ellipsis")] if outputs else []


def _jobs(figures: Figures, width: int) -> Iterator[RenderableType]:
    for job in figures.jobs:
        yield Text.assemble(
            (plain(job.command), "bold"),
            plain(f" to {_short(job.output)}, {job.model}, pid {job.pid}"),
            no_wrap=True,
            overflow="ellipsis",
        )
        yield _progress(job, width, figures.at)


def _progress(job: JobProgress, width: int, now: float) -> Text:
    """A bar with the counts beside it; those below for which there is no room."""
    ended = job.done + job.failed
    speeds = [rows_per_s(job.rows_per_s), *([tokens_per_s(job.tokens_per_s)] if job.generated_tokens else [])]
    counts = [rows_of(ended, job.total, exact=job.exact), *(speeds if ended else ["starting"])]
    counts += filter(None, [left(job.seconds_left)])
    silent = [f"no news for {now - job.at:,.0f} s"] if job.at and now - job.at > STALE_SECONDS else []
    failures = [f"{job.failed:,} {'failed' if job.counted_here else 'requests failed'}"] if job.failed else []
    bad = [*silent, *failures]
    parts, below = [*counts, *bad], list[str]()
    if cell_len(BETWEEN.join(parts)) > width - 2 * _GAP - _SHORTEST_BAR:
        parts, below = parts[:1], parts[1:]
    beside = BETWEEN.join(parts)
    line = Text("  ", no_wrap=True, overflow="ellipsis")
    if job.total:
        room = max(width - 2 * _GAP - cell_len(beside), 0)
        line.append(bar(ended / job.total, min(room, _LONGEST_BAR)), style="blue").append("  ")
    line.append("\n  ".join([beside, *filled(below, width - _GAP)]))
    for each in bad:
        line.stylize("red", line.plain.rindex(each), line.plain.rindex(each) + len(each))
    return line


def _others(jobs: Sequence[JobStatus]) -> Iterator[RenderableType]:
    for job in jobs[-3:]:
        # The manager knows no other dead letters.
        failed = [f"{counted(job.failed, 'request')} failed"] if job.failed else []
        counts = ", ".join([f"{job.finished:,} done", *failed, f"{job.generated_tokens:,} generated"])
        yield Text(
            plain(f"  {counts}: {job.job or '(unnamed)'}"), style="bright_black", no_wrap=True, overflow="ellipsis"
        )


def _rows(rows: Sequence[RowLife], width: int) -> Table:
    longest = max(row.queued + row.prefill + row.decode for row in rows)
    names = _row_names(rows, min(_MOST_OF_NAME, max(width // 4, 8)))
    times = [_took(row) for row in rows]
    room = max(width - max(map(cell_len, names)) - max(each.cell_len for each in times) - 2 * _GAP, 10)
    heads = Text("  ".join(f"{sign} {name}" for name, sign, _ in _SPANS), style="bright_black", no_wrap=True)
    table = _table(("", heads, ""), yielding=(1,))
    for row, name, took in reversed([*zip(rows, names, times, strict=True)]):
        table.add_row(Text(name), _life(row, room / longest if longest > 0 else 0.0), took)
    return table


def _row_names(rows: Sequence[RowLife], most: int) -> list[str]:
    """Their ids, after their jobs' names where there are several; of a long name its end."""
    of_one = len({row.of for row in rows}) == 1
    found = [" ".join(filter(None, ["" if of_one and row.id else _ending(row.of), _place(row.id)])) for row in rows]
    return [plain(name if len(name) <= most else f"…{name[1 - most :]}") for name in found]


def _place(row_id: str) -> str:
    """A row's id as shown: of an id that is a place in a file, the file's name and the place without its folders."""
    return row_id.rsplit("/", 1)[-1] if row_id.startswith("/") or "://" in row_id else row_id


def _life(row: RowLife, per_second: float) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for name, sign, style in _SPANS:
        line.append(sign * round(getattr(row, name) * per_second), style=style)
    return line


def _took(row: RowLife) -> Text:
    whole = _seconds(row.queued + row.prefill + row.decode)
    if row.state == "failed":
        return Text(plain(f"{row.error}, {whole}"), style="red")
    if row.state == "running":
        return Text(f"running, {whole}")
    return Text(f"{row.prompt_tokens:,} + {row.generated_tokens:,} tokens, {whole}")


def _letter(letter: FailedRow) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(letter.at))
    source = f" ({_short(letter.source)})" if letter.source else ""
    line = Text(f"{at} ", no_wrap=True, overflow="ellipsis")
    return line.append(plain(letter.error), style="red").append(plain(f" {letter.reason}{source}"))


def _table(heads: Iterable[str | Text], yielding: Collection[int]) -> Table:
    """`yielding`: the columns that become narrow where the terminal is, before others are cut."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bright_black")
    for index, head in enumerate(heads):
        table.add_column(head, no_wrap=index not in yielding, overflow="ellipsis")
    return table


def _short(address: str) -> str:
    """The last two parts of a path; other addresses as they are."""
    parts = address.split("/")
    return f"…/{'/'.join(parts[-2:])}" if address.startswith("/") and len(parts) > 3 else address


def _ending(address: str) -> str:
    """The last part of a path; of the server's routes what follows their version."""
    return address.removeprefix("/v1/") if address.startswith("/v1/") else address.rsplit("/", 1)[-1] or address


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else duration(seconds)


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
