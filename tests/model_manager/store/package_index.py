"""An index of Python packages at a port of this machine, with the days on which its files were uploaded."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_JSON = "application/vnd.pypi.simple.v1+json"


def write_wheel(folder: Path, name: str, version: str, content: str = "", requires: str = "") -> Path:
    """A wheel with one module, which needs no build."""
    wheel, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


class _Handler(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        """`/simple/NAME/` is NAME.json."""
        return super().translate_path(f"{path.split('/')[-2]}.json" if path.endswith("/") else path)

    def guess_type(self, path: Any) -> str:
        """The content type of a list of a package's files, or of a wheel."""
        return _JSON if str(path).endswith(".json") else "application/octet-stream"

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def package_index(folder: Path, name: str, uploaded: Mapping[str, str]) -> Iterator[str]:
    """The URL of an index with empty wheels of a package: versions, and when each was uploaded; "" is not told."""
    folder.mkdir()
    wheels = {version: write_wheel(folder, name, version).name for version in uploaded}
    files = [
        {
            "filename": wheel,
            "url": f"/{wheel}",
            "hashes": {},
            **({"upload-time": at} if (at := uploaded[version]) else {}),
        }
        for version, wheel in wheels.items()
    ]
    (folder / f"{name}.json").write_text(json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
