"""The files of the page, and the headers that they are sent with. No script and no style stands in the page itself."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).with_name("static")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FILES = {"/": "page.html"} | {
    f"/window/{name}": name
    for name in ("page.css", "icon.svg", "page.js", "panels.js", "drawing.js", "streams.js", "prompt.js")
}
PATHS = (*_FILES,)
"""Paths of the page's files. They hold nothing of this machine, so they need no key."""


def page_routes() -> list[Route]:
    """A route for each file."""
    return [Route(path, _file) for path in _FILES]


async def _file(request: Request) -> Response:
    file = _FOLDER / _FILES[request.url.path]
    return Response(file.read_bytes(), headers={**_HEADERS, "content-type": _KINDS[file.suffix]})
