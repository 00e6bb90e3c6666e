"""A Cloud Storage server of this machine's own, and a proxy before it that counts, corrupts and holds up.

python -m tests.model_manager.store.cloud_storage FOLDER     serves FOLDER, prints its port
"""

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gcp_storage_emulator.server import create_server  # type: ignore[import-untyped]
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage  # type: ignore[import-untyped]

BUCKET = "models-of-a-test"


class CloudStorage:
    """The emulator with one bucket, reached through a proxy."""

    def __init__(self, client: storage.Client, proxy: "Proxy") -> None:
        self.proxy = proxy
        self.environment = {"STORAGE_EMULATOR_HOST": proxy.endpoint}
        self.bucket = client.create_bucket(BUCKET)

    def upload(self, folder: Path, prefix: str) -> str:
        """Store every file of `folder`; returns the gs:// address."""
        for path in folder.iterdir():
            self.bucket.blob(f"{prefix}/{path.name}").upload_from_filename(path)
        return f"gs://{BUCKET}/{prefix}"


class Proxy(ThreadingHTTPServer):
    """Passes requests on, one thread each."""

    daemon_threads = False

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.upstream = upstream
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.downloads: list[str] = []
        """Names of the objects whose bytes were asked for, one for each request."""
        self.corrupt: str | None = None
        """Object whose bytes arrive altered."""
        self.failures: dict[str, int] = {}
        """How often each object still answers 503."""
        self.denied = False
        """Every request is answered 403."""
        self.held: str | None = None
        """Object that is not answered until `release` is set."""
        self.reached_held = threading.Event()
        self.release = threading.Event()


class _Forward(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        name = self._object()
        if self.server.denied:
            return self.send_error(403)
        if name is not None:
            self.server.downloads.append(name)
            if self._fails(name):
                return self.send_error(503)
            self._hold(name)
        return self._answer(name)

    def _object(self) -> str | None:
        path = urllib.request.unquote(self.path.partition("?")[0])  # type: ignore[attr-defined]
        return str(path).rpartition("/")[2] if "/download/" in path else None

    def _fails(self, name: str) -> bool:
        left = self.server.failures.get(name, 0)
        self.server.failures[name] = max(0, left - 1)
        return left > 0

    def _hold(self, name: str) -> None:
        if name == self.server.held:
            self.server.reached_held.set()
            self.server.release.wait(60)

    def _answer(self, name: str | None) -> None:
        request = urllib.request.Request(self.server.upstream + self.path, headers=dict(self.headers))
        try:
            with urllib.request.urlopen(request) as reply:
                status, headers, body = reply.status, dict(reply.headers), reply.read()
        except urllib.error.HTTPError as error:
            with error:
                status, headers, body = error.code, dict(error.headers), error.read()
        if name is not None and name == self.server.corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self._send(status, headers, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if key.lower() not in ("connection", "date", "server"):
                self.send_header(key, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Tests look at `downloads` instead."""


def _client(endpoint: str) -> storage.Client:
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    return storage.Client("test", credentials, client_options={"api_endpoint": endpoint})


@contextmanager
def serve(folder: Path) -> Iterator[CloudStorage]:
    """The emulator in a process of its own, keeping objects in `folder`, and the proxy in a thread."""
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as emulator:
        try:
            assert emulator.stdout is not None
            endpoint = f"http://127.0.0.1:{int(emulator.stdout.readline())}"
            with Proxy(endpoint) as proxy, closing(_client(endpoint)) as client:
                thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
                thread.start()
                try:
                    yield CloudStorage(client, proxy)
                finally:
                    proxy.release.set()
                    proxy.shutdown()
                    thread.join()
        finally:
            emulator.kill()


def main(folder: str) -> None:
    server = create_server("127.0.0.1", 0, data_dir=os.path.abspath(folder))  # noqa: PTH100
    server.start()
    print(server._api._httpd.server_address[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
