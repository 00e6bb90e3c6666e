"""API keys: a file of them, whether a request has one, and who asks: a key, else the address that a request came from.

Keys are compared by their SHA-256 digests, which all have one length: how long it takes tells nothing of a key.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
from collections.abc import Collection, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from millrace.model_manager.wire.errors import ConfigError

from .http_errors import AUTHENTICATION, HttpError

OPEN = frozenset(("/health", "/ready"))
"""Paths that need no key: whoever watches the process has none."""


def read_keys(path: str) -> list[bytes]:
    """The keys in a file, one a line; empty lines do not count, nor does a mark of UTF-8. Raises ConfigError."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"api_key_file={path!r}: {error.strerror}; takes a file with one key a line") from None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data:
        raise ConfigError(f"api_key_file={path!r}: takes text in UTF-8, got UTF-16 or bytes that are no text")
    lines = data.removeprefix(codecs.BOM_UTF8).splitlines()
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigError(f"api_key_file={path!r}: holds no key; takes one a line")
    return keys


class KeyCheck:
    """Lets requests through that have one of the keys. `page`: paths of the page's files, which ask for a key
    themselves; POST to one of them asks the model.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[bytes], page: Collection[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with 401 to requests without a right key."""
        if scope["type"] == "http" and not self._is_open(scope) and not self._holds(scope):
            wrong = HttpError(
                401,
                "the API key is missing or wrong: takes the header Authorization: Bearer KEY",
                AUTHENTICATION,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer", "connection": "close"},
            )
            await wrong.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _holds(self, scope: Scope) -> bool:
        digest = _digest(bearer(scope) or b"")
        found = [hmac.compare_digest(digest, each) for each in self._digests]
        return any(found)

    def _is_open(self, scope: Scope) -> bool:
        return scope["path"] in OPEN or (scope["path"] in self._page and scope["method"] in ("GET", "HEAD"))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def bearer(scope: Scope) -> bytes | None:
    """The key in the header Authorization; None where there is none."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, key = given.partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else None


def client_of(scope: Scope, *, has_keys: bool) -> bytes | str:
    """Equal for requests that share their turns; `has_keys`: the key was checked.

    An address may stand for many people behind one proxy; give them keys where they are to take turns.
    """
    key = bearer(scope) if has_keys else None
    address = scope.get("client")
    return key if key is not None else str(address[0]) if address else ""
