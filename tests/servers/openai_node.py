"""OpenAI's client for Node: fetched once by npm."""

from __future__ import annotations

from pathlib import Path

from tests.servers.installed import installed, run

_VERSION = "7.57.0"


def folder() -> Path:
    """The folder whose node_modules holds it."""

    def install(folder: Path) -> None:
        options = ("--no-save", "--no-audit", "--no-fund", "--loglevel=error")
        run("npm", "install", *options, "--prefix", str(folder), f"openai@{_VERSION}")

    return installed("openai-node", _VERSION, install)
