"""A job's rows end beside clients who ask without a pause, more of them than the engine runs at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.serving.servers import MODEL, Server, running

CLIENTS, ROWS, MOST = 16, 6, 1000
"""Clients, rows, and answers after which the clients ask no more: rows that end later do not count."""
BODY = {"model": MODEL, "prompt": "The sea", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Asking:
    """Clients who ask again as soon as they are answered."""

    def __init__(self, server: Server) -> None:
        self._url = f"{server.url}/v1/completions"
        self._enough = threading.Event()
        self._all_ask = threading.Barrier(CLIENTS + 1)
        self._lock = threading.Lock()
        self.num_answers = 0

    def ask(self) -> None:
        with httpx.Client(timeout=120) as client:
            assert client.post(self._url, json=BODY).status_code == 200
            self._all_ask.wait(120)
            while not self._enough.is_set():
                assert client.post(self._url, json=BODY).status_code == 200
                with self._lock:
                    self.num_answers += 1
                    if self.num_answers >= MOST:
                        self._enough.set()

    def wait_until_all_ask(self) -> None:
        self._all_ask.wait(120)

    def end(self) -> bool:
        """Whether they still asked."""
        still = not self._enough.is_set()
        self._enough.set()
        return still


def test_rows_end_while_more_clients_than_sequences_ask_without_a_pause(tmp_path: Path) -> None:
    runtime = tmp_path / "rt"
    try:
        with (
            running(runtime, "--max_num_seqs", "2", "--lookahead", "7") as server,
            ThreadPoolExecutor(CLIENTS) as threads,
        ):
            asking = Asking(server.wait_until_ready())
            clients = [threads.submit(asking.ask) for _ in range(CLIENTS)]
            asking.wait_until_all_ask()
            params = SamplingParams(max_tokens=20, ignore_eos=True)
            with EngineClient.open(ModelConfig(max_num_seqs=2), runtime=runtime) as job:
                rows = [job.submit(f"Row {row}", params, request_id=f"row {row}") for row in range(ROWS)]
                tokens = [len(row.result(300).token_ids) for row in rows]
            still_asked = asking.end()
            for client in clients:
                client.result(120)
    finally:
        stop_models(runtime)
    assert tokens == [20] * ROWS
    assert still_asked
    assert asking.num_answers >= ROWS  # the clients went on too
