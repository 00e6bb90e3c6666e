"""A client's way to a model: through its machine's manager, or through one that shares only the network with it.

The two differ in who starts the manager, and in whose file system names of models and adapters mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..store.locating import located, located_tokenizer, tokenizer_digest
from ..wire.backends import BACKENDS
from ..wire.config import ManagerConfig, ModelConfig
from ..wire.manager_place import ManagerPlace
from ..wire.messages import OpenModel
from ..wire.runtime import RuntimeDir
from ..wire.server_keys import key_digest
from ..wire.tcp import TcpManager
from .adapter_lookup import Adapters
from .election import MANAGER_COMMAND, Election
from .remote import Remote, remote_adapters


@dataclass(frozen=True)
class Access:
    """All in which the two differ."""

    connector: Election | Remote
    opening: OpenModel
    """What asks the manager for the model."""
    folder: Path
    """Where the model's tokenizer is, if the client needs one."""
    adapters: Adapters


def access_to(place: ManagerPlace, config: ModelConfig, settings: ManagerConfig, command: Sequence[str]) -> Access:
    """Finds the files that a client needs, fetched if need be; `command` starts a manager on this machine.

    Raises ModelError for what is not found, ConfigError for settings that do not fit the model.
    """
    return (
        _remote(place, config, settings) if isinstance(place, TcpManager) else _here(place, config, settings, command)
    )


def start_manager(place: ManagerPlace, config: ModelConfig, settings: ManagerConfig) -> Callable[[], None]:
    """Have this machine's manager started, if there is none, for a model that is opened soon; returns at once.

    Returns what ends that manager again, if no model is opened (Election.abandon).
    """
    if not isinstance(place, RuntimeDir):
        return lambda: None
    election = _election(place, config, settings, MANAGER_COMMAND)
    election.prepare()
    return election.abandon


def _here(place: RuntimeDir, config: ModelConfig, settings: ManagerConfig, command: Sequence[str]) -> Access:
    config, folder = located(config)
    opening = OpenModel(config, str(folder), settings, key_digest(config))
    return Access(_election(place, config, settings, command), opening, folder, Adapters(config.max_loras))


def _election(place: RuntimeDir, config: ModelConfig, settings: ManagerConfig, command: Sequence[str]) -> Election:
    return Election(place, settings, command, forks_soon=BACKENDS[config.backend].is_forked)


def _remote(manager: TcpManager, config: ModelConfig, settings: ManagerConfig) -> Access:
    """The manager finds the model and has the keys of servers; token ids are made here."""
    folder, digest = Path(), ""
    if BACKENDS[config.backend].takes == "tokens":
        config, folder = located_tokenizer(config)
        digest = tokenizer_digest(folder)
    opening = OpenModel(config, "", settings, tokenizer=digest)
    return Access(Remote(manager), opening, folder, remote_adapters(manager, config.max_loras))
