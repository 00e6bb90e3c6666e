"""Who asks: the key of a request where keys are asked for, else the address that it came from.

An address may stand for many people behind one proxy; give them keys where they are to take turns.
"""

from __future__ import annotations

from starlette.types import Scope


def bearer(scope: Scope) -> bytes | None:
    """The key in the header Authorization; None where there is none."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, key = given.partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else None


def client_of(scope: Scope, *, has_keys: bool) -> bytes | str:
    """Equal for requests that share their turns; `has_keys`: the key was checked."""
    key = bearer(scope) if has_keys else None
    address = scope.get("client")
    return key if key is not None else str(address[0]) if address else ""
