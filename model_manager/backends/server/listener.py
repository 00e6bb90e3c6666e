"""Who listens at a port of this machine, as far as the system tells: another program may have taken a server's."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped, unused-ignore]

_PROXIES = frozenset(("docker-proxy", "rootlessport", "pasta", "passt", "slirp4netns", "conmon", "gvproxy"))
"""Programs that listen for a container, which is nobody's child here."""


def stranger(port: int, ours: int) -> str | None:
    """The process that listens at a port, where it is neither process `ours` nor one below it; None where it is, where
    it listens for a container, or where the system does not tell.
    """
    owners = _owners(port)
    if not owners or owners & _family(ours):
        return None
    found = [(pid, _name(pid)) for pid in sorted(owners)]
    if any(name in _PROXIES for _, name in found):
        return None
    pid, name = found[0]
    return f"process {pid} ({name})"


def _owners(port: int) -> set[int]:
    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # macOS tells root alone
        return set()
    listening = (each for each in found if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,))
    return {each.pid for each in listening if each.pid is not None}


def _family(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "gone"
