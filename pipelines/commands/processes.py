"""`millrace ps` and `millrace stop`: what the manager of this machine has running, and ending it."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import msgspec

from millrace.model_manager.client.observing import Ending
from millrace.model_manager.client.status import end_manager, read_status, stop_models, sweep
from millrace.model_manager.wire.config import model_name
from millrace.model_manager.wire.errors import ConfigError, counted
from millrace.model_manager.wire.job_progress import running_jobs
from millrace.model_manager.wire.manager_place import ManagerPlace
from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.runtime import RuntimeDir
from millrace.model_manager.wire.status import ModelStatus

from ..edge import at_the_edge
from ..flags.parser import FlagParser
from ..flags.shared_flags import add_place, place_of
from ..pages.texts import harmless

_INDENT = " " * 9
"""Width of the first column."""
_ENDING = "a manager is ending"
_REVISION_SHOWN = 23
"""Characters of a revision that the text shows; `--json` has all."""


def ps(arguments: Sequence[str]) -> int:
    """Print the status; returns the exit status."""
    return at_the_edge(lambda: _ps(_parse_ps(arguments)))


def stop(arguments: Sequence[str]) -> int:
    """End a model's engine, or everything; returns the exit status."""
    return at_the_edge(lambda: _stop(_parse_stop(arguments)))


def _parse_ps(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(prog="millrace ps", description="What runs on this machine: models, jobs, processes.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object; null if nothing runs.")
    add_place(parser)
    return parser.parse_args(list(arguments))


def _parse_stop(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(prog="millrace stop", description="End a model's engine, or everything and the manager too.")
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="A model's name, with or without @revision, or its key, as millrace ps shows them.",
    )
    add_place(parser)
    return parser.parse_args(list(arguments))


def _ps(flags: argparse.Namespace) -> int:
    place = place_of(flags)
    try:
        status = read_status(place)
    except Ending:
        if not isinstance(place, RuntimeDir):
            raise
        status, nothing = None, _ENDING
    else:
        if status is None:
            sweep(place)
        nothing = _nothing(place)
    if flags.json:
        print(msgspec.json.encode(status).decode())
    else:
        lines = status_lines(status) if status else [nothing]
        print(harmless("\n".join(_wrapped(lines))) if sys.stdout.isatty() else "\n".join(lines))
    return 0


def _nothing(place: ManagerPlace) -> str:
    """What runs where no manager listens."""
    if not isinstance(place, RuntimeDir):
        return "nothing is running"
    if place.lock.exists():
        return _ENDING if place.socket.exists() else "a manager is starting"
    if jobs := running_jobs(place.path):
        named = "; ".join(f"{job.job} (pid {job.pid})" for job in jobs)
        return f"no manager is running. {counted(len(jobs), 'job')} may start one: {named}"
    return "nothing is running"


def _stop(flags: argparse.Namespace) -> int:
    place = place_of(flags)
    if flags.model is None and isinstance(place, RuntimeDir):
        print(_stopped_here(place))
        return 0
    status = read_status(place)
    if status is None:
        sweep(place)
        print(_nothing(place))
        return 0
    keys: list[str | None] = [None]
    if flags.model is not None:
        keys = [model.key for model in status.models if model_name(flags.model) in _names(model)]
        if not keys:
            loaded = ", ".join(map(_name, status.models)) or "none"
            raise ConfigError(f"no model {flags.model!r} is running (running: {loaded})")
    for key in keys:
        stop_models(place, key)
    print("stopped " + (flags.model or f"every model of {place}, which stays"))
    return 0


def _stopped_here(folder: RuntimeDir) -> str:
    """End all that runs on this machine, and say how."""
    ended = end_manager(folder)
    if ended.by == "fence":
        return (
            f"the manager in {folder.path} does not answer and cannot be killed from here, so it is fenced: the next"
            " job starts another. It ends when it goes on; until then it and its engines keep their memory, and ending"
            " its container frees it"
        )
    if ended.by == "kill":
        return "stopped everything; the manager did not answer and was killed"
    return _nothing(folder) if ended.status is None else "stopped everything"


def status_lines(status: Status) -> Iterator[str]:
    """The status as text, a line for each process, model and job."""
    yield f"manager  pid {status.pid}, up {status.uptime:.0f} s"
    for model in status.models:
        yield _model_line(model)
    for job in status.jobs:
        yield (
            f"job      {job.job or '(unnamed)'}: {job.finished:,} finished, {job.failed:,} failed, "
            f"{counted(job.prompt_tokens, 'prompt token')} ({job.cached_tokens:,} from the cache), "
            f"{job.generated_tokens:,} generated, weight {job.weight:g}"
        )
    for process in status.processes:
        at = f" at {process.host}" if process.host else ""
        yield f"process  {process.pid} {process.role} {process.model}".rstrip() + at


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    """The lines, wrapped to the terminal's width. Text after the first column stays to its right."""
    width = max(shutil.get_terminal_size().columns, 2 * len(_INDENT))
    for line in lines:
        yield textwrap.fill(line, width, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False)


def _model_line(model: ModelStatus) -> str:
    stats = model.stats
    pids = ", ".join(map(str, model.pids)) or "-"
    return (
        f"model    {_name(model)}{_formats(model)}: {_state(model)}, "
        f"{'pids' if len(model.pids) > 1 else 'pid'} {pids}, "
        f"{counted(model.clients, 'client')}, "
        f"{ceil(stats.batch)} running, {stats.waiting} waiting, {stats.tokens_per_s:,.0f} tokens/s, "
        f"{_cache(model)}{stats.rss_mb:,.0f} MB, "
        f"{counted(model.restarts, 'restart')} ({model.key})"
    )


def _state(model: ModelStatus) -> str:
    return f"{model.state} for {model.waits_for}" if model.waits_for else model.state


def _cache(model: ModelStatus) -> str:
    """Blocks of KV cache; nothing for an engine that does not tell."""
    stats = model.stats
    return f"cache {ceil(stats.blocks_held)}/{stats.blocks_total} blocks, " if stats.blocks_total else ""


def _name(model: ModelStatus) -> str:
    """The model's name and the beginning of its revision: two models of one name may run side by side."""
    return f"{model.model}@{model.revision[:_REVISION_SHOWN]}" if model.revision else model.model


def _names(model: ModelStatus) -> tuple[str, ...]:
    """All that it is called by."""
    return model.model, _name(model), f"{model.model}@{model.revision}", model.key


def _formats(model: ModelStatus) -> str:
    """What weights and KV cache are held in, once the model is loaded."""
    if model.info is None:
        return ""
    info = model.info
    cache = f"KV {info.kv_cache_dtype}" if info.kv_cache_dtype not in ("", info.dtype) else ""
    quantization = info.quantization if info.quantization != "none" else ""
    formats = ", ".join(filter(None, (info.dtype, quantization, cache)))
    return f" ({formats})" if formats else ""
