"""A Cloud Storage server of this machine's own, quick to start, and a proxy before it.

python -m tests.model_manager.store.cloud_storage FOLDER     serves FOLDER, prints its port
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gcp_storage_emulator.server import create_server  # type: ignore[import-untyped]
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage  # type: ignore[import-untyped]

from tests.servers.faulty_http import FaultyProxy
from tests.servers.http_threads import running

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


class Proxy(FaultyProxy):
    """Knows which objects were asked for."""

    @property
    def downloads(self) -> list[str]:
        """Names of the objects whose bytes were asked for, one for each request."""
        paths = [request.path.partition("?")[0] for request in self.requests]
        return [path.rpartition("/")[2] for path in paths if "/download/" in path]


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
            upstream = f"127.0.0.1:{int(emulator.stdout.readline())}"
            with running(Proxy(upstream)) as proxy, closing(_client(f"http://{upstream}")) as client:
                yield CloudStorage(client, proxy)
        finally:
            emulator.kill()


def main(folder: str) -> None:
    server = create_server("127.0.0.1", 0, data_dir=os.path.abspath(folder))  # noqa: PTH100
    server.start()
    print(server._api._httpd.server_address[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
