"""Prometheus: the one on PATH, else Debian's or Ubuntu's package, which apt-get downloads and nobody installs.

Without one, tests are skipped on a developer's machine. They fail where the environment has CI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers.installed import installed, run
from tests.servers.processes import free_port, serving

_CONFIG = {"global": {"scrape_interval": "1s"}}


class NoPrometheus(Exception):
    """There is none, and none can be had here."""


def program() -> Path:
    """Its path; raises NoPrometheus."""
    if found := shutil.which("prometheus"):
        return Path(found)
    if not shutil.which("apt-get"):
        raise NoPrometheus("prometheus is not on PATH, and there is no apt-get")
    return installed("prometheus", "apt", _unpack) / "usr/bin/prometheus"


def _unpack(folder: Path) -> None:
    if os.geteuid() == 0:
        run("apt-get", "-q", "-o", "DPkg::Lock::Timeout=600", "update")
    run("apt-get", "-q", "download", "prometheus", cwd=folder)
    (package,) = folder.glob("prometheus_*.deb")
    run("dpkg-deb", "-x", str(package), str(folder))
    package.unlink()


class Prometheus:
    """One that runs, by its HTTP API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def is_ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/-/ready").status_code == 200
        return False

    def asked(self, route: str, **parameters: str) -> Any:
        """The data of an answer; fails where it says that something is wrong."""
        answer = self._client.get(f"/api/v1/{route}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]


@contextlib.contextmanager
def scraping(address: str, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes host:port under the name `a_scrape` and keeps what it sees in the folder."""
    try:
        path = program()
    except NoPrometheus as error:
        if "CI" in os.environ:
            pytest.fail(f"{error}; with CI in the environment this is no reason to skip")
        pytest.skip(str(error))
    folder.mkdir()
    scraped = {"job_name": "a_scrape", "static_configs": [{"targets": [address]}]}
    (folder / "config.yml").write_text(
        json.dumps(_CONFIG | {"scrape_configs": [scraped]})
    )  # YAML is a superset of JSON
    port = free_port()
    command: list[str | Path] = [path, f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        prometheus = Prometheus(client)
        with serving(command, prometheus.is_ready, log=folder / "log"):
            yield prometheus
