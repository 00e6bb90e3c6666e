"""Tables of what is no contest of throughput: engines' starts (benchmarks.start), long queues (benchmarks.queue), what
each element waits in a pipeline (benchmarks.latency), what constraints cost (benchmarks.constrained), servers
(benchmarks.server) and clients that hang up there (benchmarks.hang_ups), a simulated fleet (benchmarks.simulation),
greedy answers that differ (benchmarks.agreement), more models than fit (benchmarks.many_models), KV caches that shrink
(benchmarks.shrinking_cache), and jobs that grow (benchmarks.growth, benchmarks.kafka_growth).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.simulation_tables import simulated_lines, simulated_on


def small_table(figures: dict[str, Any]) -> str:
    """The table of a file's contents, and what it was taken on; ends with a line break."""
    tables = [_lines(figures), *_waits(figures)]
    table = "\n".join("".join(f"| {' | '.join(line)} |\n" for line in lines) for lines in tables)
    on = simulated_on(figures) if "part" in figures else f"On {figures['machine']}; taken {figures['taken']}."
    return f"{table}\n{textwrap.fill(on, 100, break_on_hyphens=False)}\n"


def _lines(figures: dict[str, Any]) -> list[list[str]]:
    if "part" in figures:
        return simulated_lines(figures["part"], figures["simulated"])
    if "differing" in figures:
        return _differing(figures)
    if "given_back_mib" in figures:
        return _shrinking_cache(figures)
    if "most_loads" in figures:
        return _many_models(figures)
    if "starts" in figures:
        return _starts(figures["starts"])
    if figures.get("sizes"):
        return _sizes(figures["sizes"])
    if "hang_ups" in figures:
        return _hang_ups(figures)
    if "kb_an_idle_stream" in figures:
        return _http_cost(figures)
    if "stretches" in figures:
        return _stretches(figures)
    if "resumed" in figures:
        return _resumed(figures["resumed"])
    if "clients" in figures:
        return _servers(figures)
    if "sides" in figures:
        return _constrained(figures)
    return _latencies(figures) if "barrier" in figures else _queues(figures)


def _differing(figures: dict[str, Any]) -> list[list[str]]:
    """Engines, and by how much the likeliest token led where their answers first differ."""
    head = ["engine", f"answers that differ, of {figures['asked']}", "lead of the likeliest logit there"]
    rows = [
        [f"`{name}`", str(len(leads)), ", ".join(f"{lead:.1g}" for lead in leads) or "–"]
        for name, leads in figures["differing"].items()
    ]
    return [head, ["---"] * len(head), *rows]


def _http_cost(figures: dict[str, Any]) -> list[list[str]]:
    """What the server's process costs; ranges are over the rounds."""
    whole, streamed = (figures["rounds_cpu_s"][name] for name in ("whole", "streamed"))
    us = [1e6 * each / figures["stream_tokens"] for each in streamed]
    head = [
        f"{figures['connections']} connections, {figures['max_tokens']} tokens an answer",
        "processor time",
        "a core",
    ]
    request = f"{figures['cpu_ms_a_request']:.2f} ms ({1000 * min(whole):.2f}–{1000 * max(whole):.2f})"
    token = f"{figures['cpu_us_a_streamed_token']:.0f} us ({min(us):.0f}–{max(us):.0f})"
    return [
        head,
        ["---"] * len(head),
        ["a request", request, f"{figures['requests_a_core_s']:,} requests/s"],
        ["a streamed token", token, f"{figures['streamed_tokens_a_core_s']:,} tokens/s"],
        [f"{figures['idle_streams']:,} streams that wait", "–", f"{figures['kb_an_idle_stream']} KB each"],
    ]


def _many_models(figures: dict[str, Any]) -> list[list[str]]:
    """Rows a second and loads by the order of the rows; ranges are over the rounds."""
    of = figures["settings"]
    what = f"{of['models']} models, room for {of['room']}, {of['rows']:,} rows of {of['tokens']} tokens"
    head = [f"{what}, back end `{of['backend']}`", "rows/s", "loads in all", "most loads of a model"]
    rows = []
    for order, loads in figures["loads"].items():
        jobs = [job for job in figures["jobs"] if job["order"] == order]
        rates = [job["rows_per_s"] for job in jobs]
        most = max(max(job["loads"].values()) for job in jobs)
        rate = f"{figures['rows_per_s'][order]:.0f} ({min(rates):.0f}–{max(rates):.0f})"
        rows.append([order, rate, ", ".join(map(str, loads)), str(most)])
    rows.append(["shuffled / sorted", f"{figures['ratio']:.2f}", "", ""])
    return [head, ["---"] * len(head), *rows]


def _shrinking_cache(figures: dict[str, Any]) -> list[list[str]]:
    """Rows a second by the way in which two models share memory; medians, ranges are over the rounds."""
    of = figures["settings"]
    what = f"{of['rows']:,} rows of {of['prompt']} + {of['tokens']} tokens for each of two models"
    head = [what, "rows/s", "s until the second is ready", "memory of the first engine, MiB", "loads in all"]
    rows = []
    for way, opened in figures["opened_after_s"].items():
        runs = [each for each in figures["runs"] if each["way"] == way]
        rates = sorted(each["rows_per_s"] for each in runs)
        before, after = (median(each["first_rss_mib"][at] for each in runs) for at in (0, 1))
        rate = f"{median(rates):.1f} ({rates[0]:.1f}–{rates[-1]:.1f})"
        memory = f"{before:,.0f} → {f'{after:,.0f}' if after else '–'}"
        rows.append([way, rate, f"{opened:.1f}", memory, f"{median(sum(each['loads']) for each in runs):.0f}"])
    rows.append(["shrinks / turns", f"{figures['ratio']:.2f}", "", "", ""])
    return [head, ["---"] * len(head), *rows]


def _starts(starts: list[dict[str, Any]]) -> list[list[str]]:
    head = ["", "first token, s", "of it loading, s", "peak, MB", "weights, MB", "KV cache, MB"]
    return [head, ["---"] * len(head), *map(_start, starts)]


def _start(start: dict[str, Any]) -> list[str]:
    parts = [start["memory"].get(part) for part in ("weights_mb", "kv_mb")]
    rounds = f"{start['first_token_s']:.1f} ({min(start['rounds']):.1f}–{max(start['rounds']):.1f})"
    return [
        f"{start['shape']}, {start['dtype']}: {start['engine']}",
        rounds,
        f"{start['load_s']:.1f}",
        f"{start['peak_rss_mb']:,.0f}",
        *("–" if mb is None else f"{mb:,.0f}" for mb in parts),
    ]


def _sizes(sizes: list[dict[str, Any]]) -> list[list[str]]:
    roles = ("launcher", "manager", "engine")
    head = ["rows", "rows/s", "processor time of a further row, ms", *(f"{role}, peak MB" for role in roles)]
    head += [f"{role}, MB a 100,000 rows" for role in roles]
    return [head, ["---"] * len(head), *(_size(size, roles) for size in sizes)]


def _size(size: dict[str, Any], roles: tuple[str, ...]) -> list[str]:
    further, slopes = size["next_ms_a_row"], size["mb_per_100000_rows"]
    return [
        f"{size['rows']:,}",
        f"{size['rows_per_s']:,.0f}",
        "–" if further is None else f"{further:.2f}",
        *(f"{size['peak_mb'][role]:,.0f}" for role in roles),
        *(f"{round(slopes[role], 1) + 0:.1f}" if role in slopes else "–" for role in roles),  # + 0: no minus zero
    ]


def _stretches(figures: dict[str, Any]) -> list[list[str]]:
    stretches = figures["stretches"]
    roles = list(stretches[0]["mb"])
    head = ["messages", "messages/s", "processor time of a further message, ms", *(f"{role}, MB" for role in roles)]
    rows = [
        [
            f"{each['messages']:,}",
            f"{each['messages_per_s']:,.0f}",
            f"{each['ms_a_message']:.2f}",
            *(f"{each['mb'][role]:,.0f}" for role in roles),
        ]
        for each in stretches
    ]
    return [head, ["---"] * len(head), *rows]


def _resumed(found: list[dict[str, Any]]) -> list[list[str]]:
    head = ["rows", "answered before", "first new row, s", "launcher's processor time, s", "launcher, peak MB"]
    return [head, ["---"] * len(head), *map(_resumption, found)]


def _resumption(one: dict[str, Any]) -> list[str]:
    where = "the shard of a killed job" if one["killed"] else "finished files"
    used = [f"{one['seconds']:.1f}", f"{one['launcher_cpu_s']:.1f}", f"{one['launcher_mb']:,.0f}"]
    return [f"{one['rows']:,}", f"{one['answered_before']:,}, in {where}", *used]


def _queues(figures: dict[str, Any]) -> list[list[str]]:
    steps = f"after {figures['steps']:,} steps, MB"
    head = ["requests waiting", "tokens/s without a model", "before, MB", "filled, MB", steps]
    rows = [
        [f"{int(waiting):,}", f"{rate:,.0f}", *(f"{mb:,.1f}" for mb in figures["rss_mb"][waiting].values())]
        for waiting, rate in figures["tokens_per_s"].items()
    ]
    return [head, ["---"] * len(head), *rows]


def _latencies(figures: dict[str, Any]) -> list[list[str]]:
    head = [f"{figures['shape']}, {figures['dtype']}, {figures['rate']} elements/s", "p50, s", "p99, s", "mean, s"]
    sides = {"asynchronous": "`Generate`", "barrier": f"batches of {figures['batch']}"}
    rows = [
        [name, *(f"{figures[side][figure]:.2f}" for figure in ("p50_s", "p99_s", "mean_s"))]
        for side, name in sides.items()
    ]
    return [head, ["---"] * len(head), *rows]


def _constrained(figures: dict[str, Any]) -> list[list[str]]:
    shape, dtype, size, constraint = (figures[name] for name in ("shape", "dtype", "batch_size", "constraint"))
    what = f"{shape}, {dtype}, {size} requests, {constraint}: tokens/s"
    batches = ("free", "mixed", "constrained")
    rows = [[name, *(_of_batch(side, batch) for batch in batches)] for name, side in figures["sides"].items()]
    return [[what, *batches], ["---"] * (1 + len(batches)), *rows]


def _of_batch(side: dict[str, Any], batch: str) -> str:
    rounds = side["rounds"][batch]
    relative = "" if batch == "free" else f", {side['relative'][batch]:.3f} of free"
    return f"{side['tokens_per_s'][batch]:.0f} ({min(rounds):.0f}–{max(rounds):.0f}){relative}"


def _servers(figures: dict[str, Any]) -> list[list[str]]:
    """What each answers under a crowd of clients."""
    what = f"{figures['shape']}, {figures['dtype']}, {figures['clients']} clients, {figures['max_tokens']} tokens each"
    head = [what, "requests/s", "server's own CPU, ms a request"]
    rows = [
        [
            name,
            f"{side['requests_per_s']:.1f} ({min(side['rounds']):.1f}–{max(side['rounds']):.1f})",
            f"{side['server_cpu_ms_a_request']:.2f}",
        ]
        for name, side in figures["sides"].items()
    ]
    return [head, ["---"] * len(head), *rows]


def _hang_ups(figures: dict[str, Any]) -> list[list[str]]:
    """How long requests outlive their clients, beside a crowd of streams."""
    head = [f"{figures['hang_ups']} hang-ups beside {figures['crowd']} streams, ms", "p50", "p95", "max"]
    rows = [
        [f"{side}, {'in a stream' if kind == 'stream' else 'before the whole answer'}", *map(str, waits.values())]
        for side, kinds in figures["milliseconds"].items()
        for kind, waits in kinds.items()
    ]
    return [head, ["---"] * len(head), *rows]


def _waits(figures: dict[str, Any]) -> list[list[list[str]]]:
    """The table of servers' waits where requests come at random, at shares of what each can take; [] if none came."""
    at_random = {name: side.get("at_random", {}) for name, side in figures.get("sides", {}).items()}
    if not any(at_random.values()):
        return []
    head = ["requests at random", "first token, ms", "each later token, ms", "whole answer, ms"]
    rows = [
        [f"{name}, at {share} of its own requests/s", *map(_wait_of(waits), _WAITS)]
        for name, shares in at_random.items()
        for share, waits in shares.items()
    ]
    return [[head, ["---"] * len(head), *rows]]


_WAITS = ("first_token_s", "later_token_s", "latency_s")


def _wait_of(waits: dict[str, dict[str, float]]) -> Callable[[str], str]:
    """A kind of wait as p50 / p95 / p99, in milliseconds."""
    return lambda kind: (
        " / ".join(f"{1000 * waits[kind][share]:,.0f}" for share in ("p50", "p95", "p99")) if kind in waits else "–"
    )
