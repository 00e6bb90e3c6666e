"""The Engine of a managed server: an EndpointEngine with one URL, and the server's life tied to this process.

    inference process ── pipe ──► guard ──► server and its processes
            └──────────────── HTTP on the loopback ─────────┘

The server dies or hangs: this process ends, and the manager starts another, as after any death of an engine. This
process ends: the guard ends the server.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...wire.config import ModelConfig
from ...wire.endpoint_options import EndpointOptions
from ...wire.server_options import parse
from ..endpoint.engine import EndpointEngine, connect
from .process import ServerProcess, free_port, leave


def load(config: ModelConfig, folder: Path) -> EndpointEngine:
    """An engine whose server is started and healthy; raises ConfigError, or ModelError if it does not come up."""
    options, connection = parse(config.backend_options)
    port = options.port or free_port()
    command = options.arguments(config.model, port, config.tensor_parallel)
    server = ServerProcess(command, port, options.health_route)
    try:
        server.wait_until_healthy()
        served = msgspec.structs.replace(config, model=options.served_model or config.model)
        engine = connect(served, folder, EndpointOptions.parse(connection | {"urls": server.url}))
    except BaseException:
        server.close()
        raise
    engine.info = msgspec.structs.replace(engine.info, name=config.model, device=options.preset or "server")
    server.watch(options.hang_timeout, leave)
    return engine
