"""The dashboard asks for metrics and labels that a scrape of a server has, beside which a job ran. No test starts
Grafana; test_dashboard_in_prometheus.py asks Prometheus.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.metrics.scrapes import Scrape, scraped
from tests.serving.servers import fake_server

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy/grafana/millrace.json").read_text())
SCRAPED = {"instance"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    """The metrics of a server with an answer, beside a job with an answer, a dead letter and a constraint."""
    folder = tmp_path_factory.mktemp("grafana")
    rows = [{"prompt": "a"}, {"prompt": "b", "deadline": 1e-9}, {"prompt": "c", "constraint": {"regex": "yes|no"}}]
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with fake_server(folder / "rt") as server:
        assert server.post("/v1/completions", {"prompt": [5], "max_tokens": 2}).status_code == 200
        run = [sys.executable, "-m", "millrace", "run", "--backend=fake", f"--input={folder}/in.jsonl"]
        environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder / "rt")}
        subprocess.run([*run, f"--output={folder}/out/c", "--quiet"], check=True, env=environment)
        yield scraped(f"{server.url}/metrics")


def targets() -> Iterator[dict[str, Any]]:
    return (target for panel in DASHBOARD["panels"] for target in panel["targets"])


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are(panel: dict[str, Any], scrape: Scrape) -> None:
    for target in panel["targets"]:
        names = re.findall(r"millrace:\w+", target["expr"])
        assert names
        assert set(names) <= {sample.name for sample in scrape.samples}


def test_each_label_in_a_panel_is_one_of_its_metric(scrape: Scrape) -> None:
    for target in targets():
        known = {label for each in scrape.samples if each.name in target["expr"] for label in each.labels} | SCRAPED
        grouped = ",".join(re.findall(r"by \(([\w, ]+)\)", target["expr"])).replace(" ", "").split(",")
        chosen = re.findall(r"\{(\w+)=", target["expr"])
        assert {*filter(None, grouped), *chosen, *re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known


@pytest.mark.parametrize(
    "name",
    [
        *("credits", "credits_in_use", "grammar_compilations_total", "grammar_compilation_seconds_total"),
        *("grammar_cache_hits_total", "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket"),
        *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket", "engine_restarts_total"),
        *("job_dead_letters_total", "prefix_cache_hits_total", "spec_decode_num_accepted_tokens_total"),
    ],
)
def test_what_is_promised_has_a_panel(name: str) -> None:
    assert any(f"millrace:{name}" in target["expr"] for target in targets())


def test_histograms_tell_jobs_from_the_servers_own_requests() -> None:
    asked = [target for target in targets() if "_bucket" in target["expr"]]
    assert all("{{source}}" in target["legendFormat"] for target in asked)


def test_the_data_source_is_a_variable() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "model_name"}
    chosen = {each["datasource"]["uid"] for each in (*DASHBOARD["panels"], *targets())}
    assert chosen == {"${datasource}"}


def test_panels_have_a_place_and_a_number_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in DASHBOARD["panels"]})
