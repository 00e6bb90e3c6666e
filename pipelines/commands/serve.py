"""`millrace serve`: OpenAI's API over HTTP, answered by this machine's engine. Imports neither Beam nor torch."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import millrace
from millrace.model_manager.client.access import start_manager
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.die_with_parent import with_this_process
from millrace.model_manager.wire.extras import check_serve_extra
from millrace.model_manager.wire.manager_place import manager_place
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.traces import Traces
from millrace.serving.settings import ServeConfig

from ..edge import at_the_edge
from ..flags.backend import check_engine_flags, given_backend, read_backend
from ..flags.from_settings import add_settings, arguments_of, given
from ..flags.parser import FlagParser
from ..flags.shared_flags import add_engine, add_logging, add_manager, add_model, log_level
from ..flags.trace_flags import add_traces, read_traces
from ..job.logs import logs_at, tell
from .served_adapters import adapters_of, allow_adapters, found_here, found_there

if TYPE_CHECKING:
    from millrace.model_manager.client.adapter_lookup import Adapters
    from millrace.model_manager.client.engine_client import EngineClient
    from millrace.serving.http.observers import Observer
    from millrace.serving.requests.opening_client import EngineOpener
    from millrace.serving.requests.service import JobCommand, Served


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit status."""
    return at_the_edge(lambda: _serve(arguments), verbose="--verbose" in arguments)


def _serve(arguments: Sequence[str]) -> int:
    parser, names = serve_parser()
    flags = parser.parse_args(list(arguments))
    settings = ServeConfig(**given(flags, names["server"]))
    allow_adapters(flags, settings)
    model = ModelConfig.parse(given(flags, names["model"]) | read_backend(flags)).for_task("generate")
    check_engine_flags(model, "generate", SamplingParams())
    manager = ManagerConfig.parse(given(flags, names["manager"]))
    check_serve_extra("serve")
    place = manager_place(manager)
    place.check()
    adapters = adapters_of(settings, model, place)
    traces = read_traces(flags)
    end_unused_manager = start_manager(place, model, manager)
    try:
        found = found_here(adapters, model, place)
        served = partial(_served, settings, model, manager, job_of(flags, names), adapters)
        _run(flags, settings, served, partial(_open, model, manager, traces, adapters, found), traces)
    except BaseException:
        end_unused_manager()
        raise
    return 0


def job_of(flags: argparse.Namespace, names: dict[str, list[str]]) -> JobCommand:
    """What starts jobs of batches: with the server's flags of models, so that they attach to the same engine. There too
    text is no turn of a conversation.
    """
    own = given(flags, [name for name in (*names["model"], *names["manager"]) if not name.startswith("backend")])
    model = arguments_of(own | given_backend(flags))
    launched = with_this_process([sys.executable, "-m", "millrace"])
    return lambda command, more: [*launched, command, *model, "--chat", "never", *more]


def _served(
    settings: ServeConfig, model: ModelConfig, manager: ManagerConfig, job: JobCommand, adapters: Mapping[str, str]
) -> Served:
    from millrace.model_manager.client.status import read_status
    from millrace.serving.requests.service import Served

    name, read = settings.served_model_name or model.model, partial(read_status, manager_place(manager))
    return Served(name, model.backend, millrace.__version__, job, read, adapters)


def _run(
    flags: argparse.Namespace,
    settings: ServeConfig,
    served: Callable[[], Served],
    opener: EngineOpener,
    traces: Traces | None,
) -> None:
    from millrace.serving.http.observers import RequestLog
    from millrace.serving.server import serve

    with logs_at(log_level(flags)) as console:
        serve(settings, served(), opener, partial(tell, console), observers=[RequestLog(), *_traced(traces)])


def _traced(traces: Traces | None) -> list[Observer]:
    """What makes a span of each request, where traces are on."""
    if traces is None:
        return []
    from millrace.serving.tracing import RequestTraces

    return [RequestTraces(traces)]


def _open(
    model: ModelConfig,
    manager: ManagerConfig,
    traces: Traces | None,
    adapters: Mapping[str, str],
    found: Adapters | None,
    abandoned: threading.Event,
) -> EngineClient:
    """A client for prompts as they are: a chat template is for conversations alone. `found`: the look-up that has
    found the adapters, unless the manager is to find them.
    """
    from millrace.model_manager.client import EngineClient

    found = found or found_there(adapters, model, manager_place(manager))
    job = f"serve, {socket.gethostname()}, pid {os.getpid()}"  # a container's own pids are the same in each
    given: dict[str, Any] = {"chat": False, "abandoned": abandoned, "traces": traces, "adapters": found}
    return EngineClient.open(model, manager=manager, job=job, serves=True, **given)


def serve_parser() -> tuple[FlagParser, dict[str, list[str]]]:
    parser = FlagParser(
        prog="millrace serve",
        usage="%(prog)s [--model MODEL] [--port PORT] [flags]",
        description="Serve OpenAI's API over HTTP, with the engine that jobs on this machine share.",
        allow_abbrev=False,
    )
    names = {"server": add_settings(parser.add_argument_group("server (times in seconds)"), ServeConfig)}
    names["model"] = add_model(parser.add_argument_group("model")) + add_engine(parser.add_argument_group("engine"))
    names["manager"] = add_manager(parser.add_argument_group)
    add_traces(parser.add_argument_group("traces"))
    add_logging(parser.add_argument_group("run"))
    return parser, names
