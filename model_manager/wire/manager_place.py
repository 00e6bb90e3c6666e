"""Where the manager of a job is: this machine's runtime folder, or a TCP address with a key.

Settings name it, else the environment: an image of workers says it once, and its pipelines need not.
"""

from __future__ import annotations

import os
from pathlib import Path

from .address import TcpAddress, parse_address
from .config import ManagerConfig, runtime_dir
from .errors import ConfigError
from .runtime import RuntimeDir
from .tcp import TcpManager

ManagerPlace = RuntimeDir | TcpManager

ADDRESS_VARIABLE = "MILLRACE_MANAGER"
KEY_VARIABLE = "MILLRACE_MANAGER_KEY_FILE"
_NOWHERE = ManagerConfig()


def manager_place(settings: ManagerConfig = _NOWHERE, runtime: Path | None = None) -> ManagerPlace:
    """`runtime`, what the settings say, or the environment; else this user's runtime folder on this machine.

    Raises ConfigError for an address that is none, and for one of TCP without a key file.
    """
    if runtime is not None:
        return RuntimeDir(runtime)
    named = settings.manager or os.environ.get(ADDRESS_VARIABLE, "")
    if not named:
        return RuntimeDir(runtime_dir())
    address = parse_address(named, "manager" if settings.manager else ADDRESS_VARIABLE)
    return TcpManager(address, key_file(settings, named)) if isinstance(address, TcpAddress) else RuntimeDir(address)


def key_file(settings: ManagerConfig, address: str) -> Path:
    """The file of the key for a TCP address; raises ConfigError if none is named."""
    found = settings.manager_key_file or os.environ.get(KEY_VARIABLE, "")
    if not found:
        raise ConfigError(
            f"manager={address!r}: needs the file of its key: --manager_key_file PATH, or the variable {KEY_VARIABLE}"
        )
    return Path(found)
