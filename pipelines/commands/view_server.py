"""Serves pages of one output to this machine, on a socket of the loopback address, by the standard library.

An address has a random token in it, which nobody guesses; and a request whose Host is not this server's own is refused,
so that no page of another site can have its name lead here (DNS rebinding). There is nothing but GET, and nothing is
read but what the look shows.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from millrace.model_manager.wire.errors import ConfigError, MillraceError

from ..pages.html import policy

_log = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_TIMEOUT = 30.0
"""Seconds that a connection may be silent."""
PageMaker = Callable[[str], str]
"""The page for what follows the `?` of an address."""


@contextmanager
def served(answer: PageMaker, port: int = 0) -> Iterator[str]:
    """While the block runs, serve pages; yields their address. Raises ConfigError for a port that cannot be had."""
    token = secrets.token_urlsafe(24)
    try:
        server = _PageServer((_HOST, port), _Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port}: cannot be listened on: {error}; takes another one, or 0 for a free one"
        ) from None
    server.answer, server.path = answer, f"/{token}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="view", daemon=True)
    thread.start()
    try:
        yield f"http://{_HOST}:{server.server_port}{server.path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    answer: PageMaker
    path: str

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """A browser that hangs up is no news; anything else is logged."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _log.exception("a request ended by an error")


class _Handler(BaseHTTPRequestHandler):
    server: _PageServer
    timeout = _TIMEOUT
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A page, or a refusal that says nothing of what is here."""
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, "this address is not served to that name\n")
            return
        asked = urlsplit(self.path)
        if not hmac.compare_digest(asked.path.encode(), self.server.path.encode()):
            self._send(HTTPStatus.NOT_FOUND, "no such page: take the whole address that millrace view printed\n")
            return
        try:
            page = self.server.answer(asked.query)
        except (MillraceError, OSError, ValueError) as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"the rows cannot be read: {error}\n")
            return
        except Exception as error:
            _log.exception("a page cannot be made")
            said = f"the page cannot be made: {type(error).__name__}; what millrace view printed says where\n"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, said)
            return
        self._send(HTTPStatus.OK, page, "text/html")

    def do_HEAD(self) -> None:
        """The same, without the page."""
        self.do_GET()

    def _is_for_us(self) -> bool:
        port = self.server.server_port
        return self.headers.get_all("Host") in ([f"{_HOST}:{port}"], [f"localhost:{port}"])

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{policy(form=True)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """The server's name. It does not tell which Python this is."""
        return "millrace"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the library)
        """Nothing: an address in a log would have the token in it."""
