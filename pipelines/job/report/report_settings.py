"""The report's settings: the job's that are not defaults, versions, and the cost of its time. No secrets."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from apache_beam.options.pipeline_options import WorkerOptions

import millrace
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams

from ...flags.job_options import JobOptions
from ...pages.texts import clipped, duration
from ...plan.prices import Prices

NamedValues = list[tuple[str, str]]
_PACKAGES = ("apache-beam", "torch", "transformers", "llguidance", "pyarrow")
_SECRET = re.compile("key|token|secret|password|command|header|auth", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_MOST = 600
HOW_TO_PRICE = "--prices FILE and --machine_type NAME give it, as for millrace plan"


def settings_of(options: JobOptions) -> NamedValues:
    """Names as flags have them."""
    found = [(name, value) for name, value in _settings(options) if value not in (None, "", [], {})]
    return [(name, _USER_IN_URL.sub("…@", clipped(value, _MOST).text)) for name, value in found] + _versions()


def _settings(options: JobOptions) -> Iterator[tuple[str, Any]]:
    yield "command", f"millrace {options.task.command}"
    yield "input", " ".join(str(each) for each in options.input)
    yield "output", str(options.output)
    yield "model", options.model.model
    yield "revision", options.model.revision
    yield "engine", options.model.backend
    yield from _others(options.model, ModelConfig(), leave_out=("model", "revision", "backend", "backend_options"))
    for name, value in options.model.backend_options.items():
        yield name, "(not shown)" if _SECRET.search(name) else value
    yield from _others(options.sampling, SamplingParams(**options.task.defaults))
    for name, value in msgspec.structs.asdict(options.settings).items():
        if value is not False and isinstance(value, str | int | float | list | tuple):
            yield name, value
    yield "limit", options.limit
    yield "resume", "yes" if options.if_exists == "resume" else None
    yield "chat", None if options.chat is None else "always" if options.chat else "never"
    yield from _others(options.manager, ManagerConfig())
    yield "runner", options.runner.name
    yield "job", options.job


def _others(
    settings: msgspec.Struct, defaults: msgspec.Struct, leave_out: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Settings that differ from the defaults, with their values."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if name not in leave_out and value != getattr(defaults, name):
            yield name, msgspec.to_builtins(value)


def _versions() -> NamedValues:
    found = [("millrace", millrace.__version__)]
    for package in _PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return [*found, ("Python", platform.python_version()), ("machine", f"{platform.machine()}, {platform.system()}")]


def prices_of(options: JobOptions) -> Prices | None:
    """The prices that `--prices` names; raises ConfigError for a file that has none, or not of the machine's type."""
    prices = Prices.read(Path(options.prices)) if options.prices else None
    if prices is not None:
        _hourly(prices, options)
    return prices


def cost_of(prices: Prices | None, options: JobOptions, seconds: float) -> tuple[str, str]:
    """What the job's time costs on a machine of its type, and what that figure rests on."""
    hourly = _hourly(prices, options) if prices is not None else None
    if prices is None or hourly is None:
        return "not known", HOW_TO_PRICE
    price = hourly * Fraction(seconds) / 3600
    machine = options.beam.view_as(WorkerOptions).machine_type
    rests_on = f"{duration(seconds)} of {machine} at {float(hourly):.4f} an hour; prices as checked on {prices.checked}"
    return f"{float(price):,.{2 if price >= 1 else 4}f} {prices.currency}", rests_on


def _hourly(prices: Prices, options: JobOptions) -> Fraction | None:
    """None where no machine type is given."""
    worker = options.beam.view_as(WorkerOptions)
    if not worker.machine_type:
        return None
    parts = prices.parts(str(worker.machine_type), options.gpu, int(worker.disk_size_gb or 0))
    return sum(parts.values(), Fraction(0))
