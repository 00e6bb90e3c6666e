"""fake-gcs-server, a Cloud Storage of this machine's own, behind a proxy that injects faults.

https://github.com/fsouza/fake-gcs-server, built from its module by Go. Clients find it by STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from tests.servers.faulty_http import FaultyProxy, Reply, Request, Status
from tests.servers.go_programs import go_program
from tests.servers.http_threads import running
from tests.servers.processes import free_port, listens, serving

_PART = b"Content-Type: application/http\n"
_BATCH_BOUNDARY = "a-part-of-a-batch"

Matches = Callable[[Request], bool]


class FakeGcs(FaultyProxy):
    """The way to the server. Uploads are as Cloud Storage has them: a chunk that is sent again is stored once."""

    def __init__(self, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self._direct = f"http://127.0.0.1:{port}"
        self._stored: dict[tuple[str, str], Reply] = {}
        self._storing = threading.Lock()

    def ask(self, request: Request) -> Reply:
        """The server's answer; to a chunk of an upload that it has, the answer that it gave.

        The server itself would append the bytes again, or no longer know an upload that is finished. What Cloud
        Storage does: https://cloud.google.com/storage/docs/performing-resumable-uploads
        """
        if "/batch/" in request.target:  # the server leaves out those requests of a batch that have no name
            named = request.body.replace(_PART, _PART + b"Content-ID: <request>\n")
            headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
            return super().ask(request._replace(body=named, headers=headers))
        if request.method != "PUT" or "upload_id=" not in request.target:
            return super().ask(request)
        chunk = (request.target, request.headers.get("content-range", request.headers.get("Content-Range", "")))
        with self._storing:
            if chunk not in self._stored:
                self._stored[chunk] = super().ask(request)
            return self._stored[chunk]

    def create_bucket(self, name: str) -> None:
        """An empty bucket."""
        self._call("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Store an object, past all faults."""
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        self._call("POST", target, content)

    def get(self, bucket: str, name: str) -> bytes:
        """An object's bytes, past all faults."""
        return self._call("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The objects of a bucket."""
        listed = json.loads(self._call("GET", f"/storage/v1/b/{bucket}/o?maxResults=10000&prefix={quote(prefix)}"))
        return sorted(item["name"] for item in listed.get("items", []))

    def _call(self, method: str, target: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self._direct + target, data=body, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        with urllib.request.urlopen(request, timeout=60) as reply:
            content: bytes = reply.read()
            return content


def downloads(name: str) -> Matches:
    """Requests for an object's bytes; they name the object."""
    return lambda request: request.method == "GET" and "alt=media" in request.path and name in request.path


def looks(name: str) -> Matches:
    """Requests for what is known of an object."""
    return lambda request: (
        (request.method == "GET" and re.search(f"/o/[^?]*{re.escape(name)}", request.path) is not None)
        and "alt=media" not in request.path
    )


def listings(request: Request) -> bool:
    """Requests for the names in a bucket."""
    return request.method == "GET" and re.search(r"/b/[^/]+/o(\?|$)", request.path) is not None


def beginnings(name: str) -> Matches:
    """Requests that begin an upload."""
    return lambda request: (
        request.method == "POST" and "uploadType=resumable" in request.path and name.encode() in request.body
    )


def chunks(name: str) -> Matches:
    """Requests that bring an upload's bytes."""
    return lambda request: request.method == "PUT" and "upload_id=" in request.path and name in request.path


def batches(what: str) -> Matches:
    """Requests that hold several; one of them copies (`copyTo`) or deletes (`DELETE`)."""
    return lambda request: "/batch/" in request.path and what.encode() in request.body


def part_fails(code: int) -> Status:
    """A batch of one request goes well, and the request in it does not."""
    part = f"--{_BATCH_BOUNDARY}\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {code} Failed\r\n\r\n\r\n"
    body = f"{part}--{_BATCH_BOUNDARY}--\r\n".encode()
    return Status(200, body, {"Content-Type": f"multipart/mixed; boundary={_BATCH_BOUNDARY}"})


def program() -> Path:
    """Installed the first time."""
    return go_program("fake-gcs-server")


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[FakeGcs]:
    """A running server without buckets, its objects in memory, its log in `folder`."""
    port = free_port()
    with running(FakeGcs(port)) as proxy:
        command = [str(program()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        command += ["-backend", "memory", "-log-level", "warn", "-external-url", proxy.endpoint]
        with serving(command, lambda: listens(port), log=folder / "fake-gcs-server.log"):
            yield proxy
