"""Prism, Beam's portable runner in Go: built once by `go install`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.installed import go_install, installed
from tests.servers.processes import free_port, listens, serving

VERSION = "2.77.0"
"""Beam's, as the SDK's."""


def prism() -> Path:
    """The program."""
    install = go_install("github.com/apache/beam/sdks/v2/go/cmd/prism", f"v{VERSION}")
    return installed("prism", VERSION, install) / "prism"


@contextlib.contextmanager
def prism_server(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A job server, whose log is in `folder`; yields its endpoint. `environment` is what its workers get too."""
    port = free_port()
    command = [str(prism()), f"--job_port={port}", "--serve_http=false"]
    with serving(command, lambda: listens(port), log=folder / "prism.log", environment=environment):
        yield f"localhost:{port}"
