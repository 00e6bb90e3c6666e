"""Settings of a model that name a program, or a variable of the environment.

A client of this machine is this user, and may set them. A client over TCP would run what it likes beside the manager,
or have a secret sent to itself. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ConfigError

FLAG = "--allow_commands"


def check_no_commands(config: ModelConfig) -> None:
    """Raises ConfigError for the first such setting."""
    for setting, what in _commands(config):
        raise ConfigError(
            f"{setting}: {what}, and a client at tcp:// may name none: leave it out, or start the manager with {FLAG}"
        )


def _commands(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Each setting with its value, and what it names."""
    backend = BACKENDS[config.backend]
    if backend.servers == "started":  # a preset's command too: kinds of servers run code of the model, or import it
        yield f"backend={backend.name!r}", "starts a program beside the manager"
    if config.backend_python is not None:
        yield f"backend_python={config.backend_python!r}", "is a program beside the manager"
    if key := config.backend_options.get("key_env"):
        yield f"backend_options: key_env={key!r}", "is a variable of the manager's environment"
    if backend.options is None:
        of_tasks = [pair for options in backend.task_options.values() for pair in options.items()]
        for name, value in config.backend_options.items():
            if (name, value) not in of_tasks:
                yield f"backend_options: {name}={value!r}", f"may have {backend.name} run a program or a model's code"
