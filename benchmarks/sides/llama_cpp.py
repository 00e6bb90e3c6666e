"""llama.cpp's server by itself, in xllamacpp, on a GGUF file: all requests at once over its HTTP route."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.texts import text_of, words_of
from benchmarks.workload import LONGEST, Item

SLOTS = 64
"""As many as the back end has by default; llama.cpp's own default is fewer."""
BATCH = 512
"""Tokens of a batch, as the back end has by default; llama.cpp's own is 2,048."""


def server(folder: Path, port: int = 0, batch: int | None = None) -> Any:
    """The server, ready, with the model in that folder, at a port of this machine; 0: any. Of a batch's tokens None is
    llama.cpp's default.
    """
    # As the back end has it; else threads that spin while they wait take the client's core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(folder / "model.gguf")
    threads = len(os.sched_getaffinity(0))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * LONGEST
    params.n_threads_http = SLOTS + 2
    params.cache_ram_mib = 0
    params.cache_prompt = False
    if batch is not None:
        params.n_batch = batch
    params.verbosity = 0
    params.port = port
    return xllamacpp.Server(params)


class LlamaCppServer:
    """`/completion` for each request, a thread each; `SLOTS` of them run at once, batched by the server."""

    def __init__(self, as_back_end: bool = False) -> None:
        """`as_back_end`: with its batches; else with llama.cpp's."""
        self._batch = BATCH if as_back_end else None

    def load(self, folder: Path, dtype: str) -> None:
        del dtype  # the file's
        self._words = words_of(folder.with_name(folder.name.partition(".gguf")[0]))
        self._server = server(folder, batch=self._batch)
        self._address = str(self._server.listening_address).partition("//")[2]

    def run(self, items: list[Item]) -> list[int]:
        with ThreadPoolExecutor(len(items)) as threads:
            return list(threads.map(self._complete, items))

    def _complete(self, item: Item) -> int:
        body = {
            "prompt": text_of(item, self._words),
            "n_predict": item.num_output,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        connection = HTTPConnection(self._address)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return int(answer["tokens_predicted"])
