"""The graphs of jobs on Beam's local runner, as they are handed over, with what is pickled in them."""

from __future__ import annotations

import base64
import bz2
import re
from typing import Any

import pytest
from apache_beam.runners.portability.fn_api_runner import fn_runner

_PICKLED = re.compile(rb"QlpoO[A-Za-z0-9+/]+={0,2}")
"""How Beam writes what it pickles: compressed by bz2, in base64."""


def graphs_of(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A list that gets the graph of each job from now on, and the options that its workers are told."""
    found: list[bytes] = []
    run = fn_runner.FnApiRunner.run_via_runner_api

    def noted(runner: Any, graph: Any, options: Any) -> Any:
        told = runner._provision_info.provision_info
        found.append(unpacked(graph.SerializeToString()) + told.SerializeToString())
        return run(runner, graph, options)

    monkeypatch.setattr(fn_runner.FnApiRunner, "run_via_runner_api", noted)
    return found


def unpacked(graph: bytes) -> bytes:
    """The bytes, and behind them what is pickled in them and in that."""
    inner = [bz2.BZ2Decompressor().decompress(_decoded(each)) for each in _PICKLED.findall(graph)]
    return b"".join([graph, *map(unpacked, inner)])


def _decoded(text: bytes) -> bytes:
    """Characters that follow the base64 by chance are decoded too: what they make is behind the end of the bz2."""
    return base64.b64decode(text[: len(text) // 4 * 4])
