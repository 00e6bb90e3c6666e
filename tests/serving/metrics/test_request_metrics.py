"""The server's own requests are counted once each, with the sizes and times that they had."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.serving.http.observers import Observed
from millrace.serving.metrics.machine_metrics import MachineMetrics
from millrace.serving.metrics.request_metrics import RequestCollector
from tests.runtime_folders import status_of
from tests.serving.metrics.scrapes import Scrape, answer, scraped, told
from tests.serving.servers import Server, connected, fake_server, request, running
from tests.serving.window.feeds import feed
from tests.waiting import eventually

BODY: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
COUNTED = ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_prompt_tokens")


def counted(*requests: Observed) -> Scrape:
    metrics = RequestCollector(lambda: ("tiny", "tiny-1"))
    for each in requests:
        metrics.started(each)
        metrics.finished(each)
    return told(MachineMetrics(lambda: None, answered=metrics.answered))


def test_the_time_of_the_first_token_is_the_streams_or_reckoned_from_the_engines() -> None:
    stream = Observed(
        "/v1/completions",
        since=10.0,
        first_token=12.0,
        ended=20.0,
        generated_tokens=1,
        answers=(answer(1, ended=12.0),),
    )
    whole = Observed(
        "/v1/completions", since=10.0, ended=20.0, generated_tokens=5, answers=(answer(5, 1.0, 9.0, ended=20.0),)
    )
    assert counted(stream).total("time_to_first_token_seconds_sum") == 2.0
    assert counted(whole).total("time_to_first_token_seconds_sum") == 2.0


@pytest.mark.parametrize("first_token", [None, 13.0])
def test_a_request_is_queued_from_its_arrival_then_in_prefill_then_in_decode(first_token: float | None) -> None:
    request = Observed("/v1/completions", since=10.0, first_token=first_token, ended=20.0, generated_tokens=5)
    # received after 0.5 s, first scheduled 0.5 s later
    request.answers = (answer(5, 2.5, 9.5, ended=20.0, first_token=first_token),)
    seen = counted(request)
    times = {name: seen.total(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")}
    assert times == {"queue": 1.0, "prefill": 2.0, "decode": 7.0}
    assert seen.total("request_inference_time_seconds_sum") == 9.0


@pytest.mark.parametrize("streams", [True, False])
def test_each_prompt_of_a_request_has_its_own_time_in_the_queue(streams: bool) -> None:
    """The second was received after 5.5 s, when the first was answered; both were scheduled 0.5 s later."""
    first = answer(5, 2.5, 4.5, ended=15.0, first_token=13.0 if streams else None)
    second = answer(5, 2.5, 4.5, ended=20.0, first_token=18.0 if streams else None)
    request = Observed("/v1/completions", since=10.0, first_token=first.first_token, ended=20.0, generated_tokens=10)
    request.answers = (first, second)
    seen = counted(request)
    times = {name: seen.total(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")}
    assert times == {"queue": 1.0 + 6.0, "prefill": 2 * 2.0, "decode": 2 * 2.0}
    assert seen.total("time_to_first_token_seconds_sum") == 3.0
    assert seen.total("time_to_first_token_seconds_count") == 1


def test_an_answer_without_tokens_is_prefill_to_its_end() -> None:
    seen = counted(Observed("/v1/embeddings", since=10.0, ended=12.0, answers=(answer(0, 0.0, 1.5, ended=12.0),)))
    assert (seen.total("request_prefill_time_seconds_sum"), seen.total("request_decode_time_seconds_sum")) == (1, 0)


def test_requests_that_wait_in_the_server_for_a_credit_wait(slow_server: Server) -> None:
    with contextlib.ExitStack() as clients:
        for _ in range(40):
            sock = clients.enter_context(connected(slow_server))
            sock.sendall(request(BODY | {"max_tokens": 1000}))
        seen = eventually(
            lambda: (now := scraped(f"{slow_server.url}/metrics")).total("num_requests_waiting") >= 36 and now
        )
        assert seen.total("num_requests_outstanding") < 36, "the manager knows those alone that have a credit"
        assert seen.total("num_requests_running") > 0
    eventually(lambda: slow_server.outstanding() == 0)


def test_the_time_between_tokens_counts_once_for_each_but_the_first() -> None:
    seen = counted(Observed("/v1/completions", generated_tokens=5, answers=(answer(5, 1.0, 9.0), answer(1))))
    assert seen.total("inter_token_latency_seconds_count", engine="tiny-1") == 4
    assert seen.total("inter_token_latency_seconds_sum") == 8.0
    assert seen.total("request_time_per_output_token_seconds_count") == 1
    assert seen.total("request_time_per_output_token_seconds_sum") == 2.0


def test_a_request_without_tokens_has_no_first_token() -> None:
    seen = counted(Observed("/v1/embeddings", status=200, answers=(answer(0),)))
    assert seen.total("time_to_first_token_seconds_count") == 0
    assert seen.total("e2e_request_latency_seconds_count") == 1


def test_histograms_count_what_was_asked(server: Server) -> None:
    before = scraped(f"{server.url}/metrics")
    for body in (BODY, BODY | {"n": 3}, BODY | {"stream": True}, BODY | {"prompt": [[5], [6, 7]]}):
        assert server.post("/v1/completions", body).status_code == 200
    assert server.post("/v1/completions", BODY | {"max_tokens": -1}).status_code == 400
    assert server.post("/tokenize", {"prompt": "a"}).status_code == 200
    seen = scraped(f"{server.url}/metrics")

    def more(name: str, **labels: str) -> float:
        return seen.total(name, **labels) - before.total(name, **labels)

    assert [more(f"{name}_count") for name in COUNTED] == [4, 4, 4]
    assert more("request_prompt_tokens_sum") == 4 * 3
    assert more("request_generation_tokens_sum") == 4 * (1 + 3 + 1 + 2)
    assert more("request_queue_time_seconds_count") == 7
    assert more("request_success_total", finished_reason="length") == 7
    assert more("inter_token_latency_seconds_count") == 7 * 3
    assert more("generation_tokens_total") == more("request_generation_tokens_sum")
    assert more("http_requests_total", route="/v1/completions", status="200") == 4
    assert more("http_requests_total", route="/v1/completions", status="400") == 1
    assert more("http_requests_total", route="/tokenize") == 1
    assert seen.total("http_requests_running") == 0


def test_a_servers_requests_and_those_of_others_are_told_apart_and_none_is_counted_twice(tmp_path: Path) -> None:
    def counts(scrape: Scrape) -> dict[str, list[float]]:
        names = ("e2e_request_latency_seconds_count", "request_generation_tokens_sum", "request_success_total")
        sources = {each.labels["source"] for each in scrape.samples if "source" in each.labels}
        return {source: [scrape.total(name, source=source) for name in names] for source in sources}

    config = ModelConfig(model=EMBEDDED_MODEL, backend="fake")
    with fake_server(tmp_path / "rt") as server:
        for body in (BODY, BODY | {"stream": True, "n": 2}):
            assert server.post("/v1/completions", body).status_code == 200
        with EngineClient.open(config, runtime=tmp_path / "rt") as client:
            params = SamplingParams(max_tokens=3, ignore_eos=True)
            for future in [client.submit([7, number], params, request_id=f"{number}") for number in range(5)]:
                future.result()
        seen = scraped(f"{server.url}/metrics")
        beside = told(MachineMetrics(partial(status_of, tmp_path / "rt")))
    assert counts(seen) == {"server": [2, 12, 3], "job": [5, 15, 5]}
    assert counts(beside) == {"server_answers": [3, 12, 3], "job": [5, 15, 5]}
    assert seen.total("e2e_request_latency_seconds_count") == 7
    assert len({each.labels["engine"] for each in seen.samples if "engine" in each.labels}) == 1
    from_arrival, from_receipt = (
        each.total("request_queue_time_seconds_sum", source=source)
        for each, source in ((seen, "server"), (beside, "server_answers"))
    )
    assert from_arrival > from_receipt > 0


def test_prompts_in_one_stream_that_wait_for_each_other_are_timed_one_by_one(tmp_path: Path) -> None:
    """The engine runs one at a time, and the server has two credits for its five prompts."""
    body = BODY | {"prompt": [[number, 6] for number in range(5)], "stream": True}
    with fake_server(tmp_path / "rt", "--max_num_seqs", "1", step=0.02) as server:
        assert server.post("/v1/completions", body).status_code == 200
        seen = scraped(f"{server.url}/metrics")
        with feed(server.url) as frames:
            figures = next(frames)["figures"]
    queued, prefill, decode = (
        seen.total(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")
    )
    latency, first = (seen.total(f"{name}_seconds_sum") for name in ("e2e_request_latency", "time_to_first_token"))
    (row,) = figures["rows"]
    assert row["decode"] >= decode, "all answers are generated after the first token, one at a time"
    assert row["queued"] <= first < row["queued"] + row["prefill"] + row["decode"] <= latency
    assert prefill >= 5 * 0.02
    least = (0 + 1 + 2 + 3 + 4) * BODY["max_tokens"] * 0.02
    assert queued >= least / 2, "each waits for all before it, and no step is shorter than 0.02 s"


def test_the_servers_metrics_name_the_model_as_the_machines_do(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--served_model_name", "other") as server:
        assert server.post("/v1/completions", BODY).status_code == 200
        seen = scraped(f"{server.url}/metrics")
    labels = [
        {name: each.labels[name] for name in ("model_name", "engine")}
        for each in seen.samples
        if each.name in ("millrace:num_requests_running", "millrace:request_success_total")
    ]
    assert len(labels) == 2
    assert labels[0] == labels[1]


def test_a_client_that_hangs_up_is_counted_and_answers_nothing(slow_server: Server) -> None:
    hung_up = {"status": "499", "error": "hungup", "route": "/v1/completions"}
    before = eventually(partial(scraped_at_rest, slow_server), "what other tests began has ended")
    with connected(slow_server) as sock:
        sock.sendall(request(BODY | {"max_tokens": 1000}))
        eventually(lambda: slow_server.outstanding() == 1)
    seen = eventually(partial(scraped_at_rest, slow_server))
    assert seen.total("http_requests_total", **hung_up) - before.total("http_requests_total", **hung_up) == 1
    assert seen.total("request_success_total") == before.total("request_success_total")


def scraped_at_rest(server: Server) -> Scrape | None:
    """What it says if no request runs: each that was hung up is counted then."""
    seen = scraped(f"{server.url}/metrics")
    return None if seen.total("http_requests_running") else seen


def test_scrapes_at_once_and_amid_requests_each_have_all(slow_server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(slow_server.post, "/v1/completions", BODY) for _ in range(4)]
        scrapes = [*pool.map(lambda _: scraped(f"{slow_server.url}/metrics"), range(20))]
    assert [future.result().status_code for future in asked] == [200] * 4
    assert {scrape.total("up") for scrape in scrapes} == {1}


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"authorization": "Bearer secret"}, 200)])
def test_metrics_need_the_key_and_no_loaded_model(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with running(tmp_path / "rt", "--backend", "fake", "--api_key_file", str(tmp_path / "keys")) as server:
        assert httpx.get(f"{server.url}/metrics", headers=headers).status_code == status
