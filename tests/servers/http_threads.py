"""An HTTP server of a test, at work in threads of this process."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

S = TypeVar("S", bound=HTTPServer)


@contextlib.contextmanager
def running(server: S) -> Iterator[S]:
    """The server answers until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Answers in JSON, and logs nothing: tests look at what their server remembers."""

    def send_json(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
