"""A model hub of this machine's own: the few endpoints that fetching a model takes, over real HTTP."""

import hashlib
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from tests.servers.http_threads import JsonHandler, running

COMMIT = "c0ffee" + 34 * "0"


class ModelHub(ThreadingHTTPServer):
    """Serves folders under `org/name`, all at the branch main and the same commit."""

    daemon_threads = False

    def __init__(self, cache: Path) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.models: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.downloads: list[str] = []
        """Names of the files whose bytes were asked for."""
        self.truncated: str | None = None
        """File that is sent without its last byte."""
        self.environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server_address[1]}",
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


class _HubHandler(JsonHandler):
    server: ModelHub

    def _route(self) -> None:
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            model, what, revision = "/".join(parts[2:4]), *(parts[4:6] or ["revision", "main"])
        else:
            model, what, revision = "/".join(parts[:2]), *parts[2:4]
        if model not in self.server.models:
            return self._refuse(404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if model in self.server.gated and what == "resolve":
            return self._refuse(403, "GatedRepo")
        folder = self.server.models[model]
        if what == "revision":
            siblings = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
            return self.send_json({"id": model, "sha": COMMIT, "siblings": siblings})
        if what == "tree":
            return self.send_json([_tree_entry(path) for path in sorted(folder.iterdir())])
        return self._send_file(folder / parts[-1])

    do_HEAD = do_GET = _route  # noqa: N815

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_file(self, path: Path) -> None:
        body = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{_blob_id(body)}"')
        if self.command == "GET" and path.name == self.server.truncated:
            body = body[:-1]
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.server.downloads.append(path.name)
            self.wfile.write(body)


def _tree_entry(path: Path) -> dict[str, object]:
    body = path.read_bytes()
    return {"type": "file", "path": path.name, "size": len(body), "oid": _blob_id(body)}


def _blob_id(body: bytes) -> str:
    """As git names a file's contents."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def serve(cache: Path) -> AbstractContextManager[ModelHub]:
    """The hub in a thread; `cache` is its client's cache folder."""
    return running(ModelHub(cache))
