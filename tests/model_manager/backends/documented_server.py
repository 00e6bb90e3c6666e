"""In the place of a server that needs a GPU, one by its documentation: `python documented_server.py FILE ARGUMENTS…`.

FILE is JSON: `words`, `flags` (with a value each; the first says the host, the second the port) and `switches` that the
server takes, its `port` if no flag says it, its `health` route, what it says `about` itself by route, and an `example`
with a `route` and a `reply`. Any other argument ends it, any other route answers 404. Beside FILE it writes its process
id (`.pid`) and the bodies that it gets (`.bodies`). It imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def parsed(arguments: list[str], server: dict[str, Any]) -> dict[str, str]:
    """The values of flags; ends the process for arguments that the server does not take."""
    words, values, rest = [], dict[str, str](), iter(arguments)
    for argument in rest:
        if argument in server["flags"]:
            values[argument] = next(rest)
        elif argument.startswith("--") and argument not in server["switches"]:
            sys.exit(f"unrecognized argument {argument}")
        elif not argument.startswith("--"):
            words.append(argument)
    if words != server["words"]:
        sys.exit(f"takes {server['words']}, got {words}")
    return values


def serve(path: Path, arguments: list[str]) -> None:
    """Answer until the process is ended."""
    server = json.loads(path.read_text())
    values = parsed(arguments, server)
    example, about = server["example"], {server["health"]: {}} | server["about"]

    class Handler(BaseHTTPRequestHandler):
        """Its routes."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(about.get(self.path), {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            with path.with_suffix(".bodies").open("a") as bodies:
                bodies.write(f"{body}\n")
            self._send(example["reply"] if self.path.endswith(example["route"]) else None, example.get("headers", {}))

        def _send(self, found: Any, headers: dict[str, str]) -> None:
            body = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            described = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in (headers | described).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            """Print nothing for a request."""

    host, port = [values[flag] for flag in server["flags"][:2]] or ("127.0.0.1", server["port"])
    path.with_suffix(".pid").write_text(str(os.getpid()))
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
