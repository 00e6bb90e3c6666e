"""The key for a model's servers, compared between who asks for the model and who starts its engines, by a hash."""

from __future__ import annotations

import hashlib

from .config import ModelConfig
from .endpoint_options import EndpointOptions
from .errors import ConfigError
from .server_options import connection_of


def key_digest(config: ModelConfig) -> str:
    """A hash of the key for the servers of this model, as this process has it; empty if none is sent.

    Raises ConfigError if its variable is not set.
    """
    key = "" if (connection := _connection(config)) is None else connection.key()
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""


def check_same_key(config: ModelConfig, digest: str) -> None:
    """Raises ConfigError if this process, which starts engines, has another key than who asks for the model."""
    if digest and digest != _digest_here(config):
        connection = _connection(config)
        name = connection.key_env if connection else ""
        raise ConfigError(
            f"backend_options: key_env={name!r}: this machine's manager was started without this value of {name}: "
            "end it with `millrace stop`, or give this job a MILLRACE_RUNTIME_DIR of its own"
        )


def _digest_here(config: ModelConfig) -> str:
    try:
        return key_digest(config)
    except ConfigError:
        return ""


def _connection(config: ModelConfig) -> EndpointOptions | None:
    return connection_of(config.backend, config.backend_options)
