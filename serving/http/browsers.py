"""Checks requests of browsers on this machine: a page may ask a server here nothing, unless it is the server's own.

A page of any site can have its browser send requests to 127.0.0.1, and a POST of plain text needs no CORS. A site can
also have its name lead here once its page is loaded (DNS rebinding); then the browser takes this server for the site.
The first is told by Sec-Fetch-Site and Origin, as https://pkg.go.dev/net/http#CrossOriginProtection does; the second by
the Host that is asked for. Programs that are no browsers send neither of the two, and an own name as Host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from .http_errors import HttpError
from .listen_addresses import is_loopback, is_own_name, without_port

_READ = (b"host", b"origin", b"sec-fetch-site")
_CHANGE_NOTHING = ("GET", "HEAD", "OPTIONS")
_OWN = ("same-origin", "none")
"""What browsers say of requests by the server's own page, and by their user."""
_SHOWN = 100


class BrowserCheck:
    """Answers with 403 to what another site's page has a browser send. Pages of `origins` may ask, and the server may
    be called by their names, and by `host`.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str] = (), host: str = "", remedy: str = "") -> None:
        self._app = app
        self._origins = origins
        self._names = frozenset((host.lower(), *(without_port(urlsplit(origin).netloc) for origin in origins)))
        self._remedy = remedy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets everything else through."""
        said = self._fault(scope) if scope["type"] == "http" else None
        if said is None:
            await self._app(scope, receive, send)
            return
        refusal = HttpError(403, said + self._remedy, code="foreign_page", headers={"connection": "close"})
        await refusal.response()(scope, receive, send)

    def _fault(self, scope: Scope) -> str | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}
        host, origin = headers.get(b"host", ""), headers.get(b"origin", "another site's")
        if is_loopback(scope["server"][0]) and not is_own_name(host, self._names):
            return f"host: {host[:_SHOWN]!r} is no name of this machine"
        if scope["method"] in _CHANGE_NOTHING or _is_own_page(headers) or origin in self._origins:
            return None
        return f"origin: {origin[:_SHOWN]!r} is not this server's own page"


def _is_own_page(headers: Mapping[bytes, str]) -> bool:
    """Whether this server's own page asks, or the user, or no browser."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site in _OWN
    origin = headers.get(b"origin")
    return origin is None or origin.partition("://")[2].lower() == headers.get(b"host", "").lower()
