"""Finds models and adapters for clients that share no file system with the manager: in its own, or fetched.

What takes its time here is called on other threads than the manager's.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..store import find_adapter
from ..store.locating import check_tokenizer, located
from ..wire.errors import ErrorInfo, ModelCorrupt, ModelLoadFailed
from ..wire.messages import AdapterFound, OpenModel
from .commands import check_no_commands


def found_model(opening: OpenModel, *, allow_commands: bool = False) -> OpenModel | ErrorInfo:
    """The message as a client of this machine would send it, or why there is no such model. A folder and a digest of a
    key that the client names count for nothing: it does not know this machine's. `allow_commands`: see commands.py.
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
