"""`millrace serve --adapters NAME=PATH …`: LoRA adapters that requests may name, found before the model is opened."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace.model_manager.client.adapter_lookup import Adapters
from millrace.model_manager.client.remote import remote_adapters
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.manager_place import ManagerPlace
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.tcp import TcpManager
from millrace.serving.settings import ServeConfig

from ..flags.backend import check_engine_flags, read_backend


def allow_adapters(flags: argparse.Namespace, settings: ServeConfig) -> None:
    """Make --max_loras their number where it is not given: jobs of batches get it too, and so share the engine.

    Raises ConfigError for an engine without adapters.
    """
    if settings.adapters and flags.max_loras is None:
        flags.max_loras = len(settings.adapters)
        _check_backend(read_backend(flags).get("backend", ModelConfig().backend), settings.adapters)


def _check_backend(name: str, adapters: Sequence[str]) -> None:
    """As for --max_loras, which was not given, so --adapters are named in its place."""
    try:
        if backend := BACKENDS.get(name):
            backend.check_setting("max_loras", len(adapters))
    except ConfigError as error:
        why = str(error).partition(": ")[2]
        raise ConfigError(f"--adapters {' '.join(adapters)}: {why}") from None


def adapters_of(settings: ServeConfig, model: ModelConfig, place: ManagerPlace) -> dict[str, str]:
    """Their paths by their names; folders of this machine are absolute, since jobs of batches run elsewhere. Reads no
    file of theirs.

    Raises ConfigError for names or a number that do not fit the model.
    """
    is_remote = isinstance(place, TcpManager)  # which reads paths on its own machine
    found = {name: path if is_remote else _absolute(path) for name, path in settings.adapter_paths.items()}
    served = settings.served_model_name or model.model
    if served in found:
        raise ConfigError(f"--adapters {served}={found[served]}: takes another name; the served model is {served}")
    if len(found) > model.max_loras:
        raise ConfigError(
            f"--max_loras {model.max_loras}: takes {len(found)} or more, the number of --adapters, which is the default"
        )
    if found:
        check_engine_flags(model, "generate", SamplingParams(adapter=next(iter(found.values()))))
    return found


def found_here(adapters: Mapping[str, str], model: ModelConfig, place: ManagerPlace) -> Adapters | None:
    """The look-up that has found them all; None with a manager elsewhere, which looks in its own files.

    Raises ConfigError for an adapter that is not found.
    """
    return None if isinstance(place, TcpManager) else _found(adapters, Adapters(model.max_loras))


def found_there(adapters: Mapping[str, str], model: ModelConfig, place: ManagerPlace) -> Adapters | None:
    """The same with a manager elsewhere, None with one of this machine; raises ManagerUnavailable too if it is away."""
    return _found(adapters, remote_adapters(place, model.max_loras)) if isinstance(place, TcpManager) else None


def _found(adapters: Mapping[str, str], lookup: Adapters) -> Adapters:
    for name, path in adapters.items():
        try:
            lookup.of(path)
        except InvalidRequest as error:
            raise ConfigError(f"--adapters {name}={path}: {str(error).removeprefix(f'adapter {path}: ')}") from None
    return lookup


def _absolute(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path
