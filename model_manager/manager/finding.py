"""Finds models and adapters for clients that share no file system with the manager: in its own, or fetched.

A client of this machine is this user, and may have a model's settings name a program, or a variable of the environment.
A client over TCP would run what it likes beside the manager, or have a secret sent to itself.

What takes its time here is called on other threads than the manager's.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..store import find_adapter
from ..store.locating import check_tokenizer, located
from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ConfigError, ErrorInfo, ModelCorrupt, ModelLoadFailed
from ..wire.messages import AdapterFound, OpenModel

FLAG = "--allow_commands"
"""The manager's flag that lets clients over TCP name programs."""


def found_model(opening: OpenModel, *, allow_commands: bool = False) -> OpenModel | ErrorInfo:
    """The message as a client of this machine would send it, or why there is no such model. A folder and a digest of a
    key that the client names count for nothing: it does not know this machine's. `allow_commands`: its
    settings may name programs.
    """
    try:
        if not allow_commands:
            check_no_commands(opening.config)
        return _found(opening)
    except Exception as error:  # of a file system or a library: it concerns this model alone
        return ErrorInfo.of(error, ModelLoadFailed)


def _found(opening: OpenModel) -> OpenModel:
    config, folder = located(opening.config)
    check_tokenizer(config, folder, opening.tokenizer)
    if opening.revision and opening.revision != (config.revision or ""):
        raise ModelCorrupt(
            f"{config.model}: the files changed while a job used them ({opening.revision} is now {config.revision});"
            " put other weights into another folder, and name that"
        )
    return replace(opening, config=config, folder=str(folder), key_digest="")


def found_adapter(name: str) -> AdapterFound:
    """Where the adapter is, or why there is none."""
    try:
        return AdapterFound(find_adapter(name))
    except Exception as error:  # as above
        return AdapterFound(error=ErrorInfo.of(error, ModelLoadFailed))


def check_no_commands(config: ModelConfig) -> None:
    """Raises ConfigError for the first setting that names a program, or a variable of the environment."""
    for setting, what in _commands(config):
        raise ConfigError(
            f"{setting}: {what}, and a client at tcp:// may name none: leave it out, or start the manager with {FLAG}"
        )


def _commands(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Each such setting with its value, and what it names."""
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
