"""The Engine of a managed server: an EndpointEngine with one URL, and the server's life tied to this process.

    inference process ── pipe ──► guard ──► server and its processes
            └──────────── HTTP or gRPC on the loopback ─────┘

The server dies, hangs or is unhealthy: this process ends, and the manager starts another, as after any death of an
engine. A server that ends by itself before it was ready fails the job: another start would fail too. This process ends:
the guard ends the server.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...engine.interface import LoadInterrupted
from ...wire.config import ModelConfig
from ...wire.endpoint_options import EndpointOptions
from ...wire.errors import ModelLoadFailed
from ...wire.server_options import parse
from ..endpoint.engine import EndpointEngine, connect
from .health import Health
from .ports import Ports
from .process import ServerProcess, leave


def load(config: ModelConfig, folder: Path) -> EndpointEngine:
    """An engine whose server is started and healthy; raises ConfigError, ModelError if it does not come up, or
    LoadInterrupted if it is killed, hangs or becomes unhealthy before all is ready.
    """
    options, connection = parse(config.backend_options)
    ports = Ports.chosen(options)
    command = options.arguments(config.model, ports.http, config.tensor_parallel, ports.grpc)
    asked = EndpointOptions.parse(connection | {"urls": ports.url})
    headers = asked.headers(asked.key())
    server = ServerProcess(command, ports, options.health_route, options.kind.environment, headers)
    try:
        server.wait_until_healthy(options.hang_timeout)
        served = msgspec.structs.replace(config, model=options.served_model or config.model)
        engine = _connected(server, served, folder, asked, options.hang_timeout)
    except BaseException:
        server.close()
        raise
    engine.info = msgspec.structs.replace(engine.info, name=config.model, device=options.preset or "server")
    server.watch(Health(options.hang_timeout, options.unhealthy_timeout, lambda: engine.last_answer_at), leave)
    return engine


def _connected(
    server: ServerProcess, config: ModelConfig, folder: Path, options: EndpointOptions, hang_timeout: float
) -> EndpointEngine:
    try:
        return connect(config, folder, options, health=server.health_url)
    except ModelLoadFailed:
        if (reason := server.why_unhealthy(hang_timeout)) is None:
            raise
        raise LoadInterrupted(reason) from None
