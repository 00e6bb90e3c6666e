"""Servers that are written in Go: Prism, fake-gcs-server and a Pub/Sub. Built once, as one module.

Their versions are in go_programs/go.mod. As one module they share the libraries that they are made of, which are
compiled once: apart, they took half as long again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from zlib import crc32

from tests.servers.installed import installed, run

_SOURCE = Path(__file__).with_name("go_programs")
_ENVIRONMENT = {"GOGC": "800", "CGO_ENABLED": "0", "GOFLAGS": "-p=1 -buildvcs=false"}
"""The compiler collects its garbage seldom, and asks no version control of the folder that it is in."""
_QUICK = ("-gcflags=all=-dwarf=false -N -l", "-ldflags=-s -w")
"""Without optimization, in three quarters of the processor time, and without tables for a debugger."""


@cache
def go_program(name: str) -> Path:
    """`prism`, `fake-gcs-server` or `pubsubserver`."""
    sources = sorted(path for path in _SOURCE.rglob("*") if path.is_file())
    version = f"{crc32(b''.join(path.read_bytes() for path in sources)):08x}"
    return installed("go-programs", version, _build) / name


def _build(folder: Path) -> None:
    names = ["./pubsubserver", "tool"]
    run("go", "build", *_QUICK, "-o", f"{folder}/", *names, cwd=_SOURCE, **_ENVIRONMENT)
