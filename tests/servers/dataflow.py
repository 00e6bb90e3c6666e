"""Dataflow's job service and Google's token endpoint, as far as a submission meets them: real HTTP, all of it recorded.

It takes jobs and says that they are done; it runs nothing.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.servers.http_threads import JsonHandler, running

TOKEN = "ya29.a-token-that-nobody-may-see"


class Exchange(NamedTuple):
    """One request that came."""

    method: str
    path: str
    body: str


class DataflowService(ThreadingHTTPServer):
    """A fake Dataflow service at `endpoint`. `exchanges` has all requests, `jobs` the jobs that were created."""

    def __init__(self) -> None:
        super().__init__(("localhost", 0), _Handler)
        self.endpoint = f"http://localhost:{self.server_address[1]}"
        self.exchanges: list[Exchange] = []
        self.jobs: list[dict[str, Any]] = []
        self.states = ["JOB_STATE_DONE"]
        """States of a job, one for each request; the last one stays."""
        self.messages: list[dict[str, str]] = []
        """Messages of the job, as the service would log them."""

    def answer(self, exchange: Exchange) -> dict[str, Any]:
        """What the service says, and remembers."""
        self.exchanges.append(exchange)
        if exchange.path == "/token":
            return {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
        if exchange.path.partition("?")[0].endswith("/messages"):
            return {"jobMessages": self.messages}
        if exchange.method == "POST":
            self.jobs.append(json.loads(exchange.body))
        job = self.jobs[-1]
        names = {"id": f"job-{len(self.jobs)}", "name": job["name"], "clientRequestId": job["clientRequestId"]}
        return names | {"currentState": self.states.pop(0) if len(self.states) > 1 else self.states[0]}


class _Handler(JsonHandler):
    server: DataflowService

    def _exchange(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.send_json(self.server.answer(Exchange(self.command, self.path, body)))

    do_GET = do_POST = _exchange  # noqa: N815


def serve() -> AbstractContextManager[DataflowService]:
    """Serve on a free port of this machine until the block ends."""
    return running(DataflowService())


def service_account(folder: Path, service: DataflowService) -> Path:
    """A key file of an account that only this service knows."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "a-project",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "tester@a-project.iam.gserviceaccount.com",
        "token_uri": f"{service.endpoint}/token",
    }
    path = folder / "account.json"
    path.write_text(json.dumps(account))
    return path
