"""Every expression of the dashboard, asked of a real Prometheus that scrapes a server beside which two jobs run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers.prometheus import Prometheus, scraping
from tests.serving.servers import Server, fake_server
from tests.waiting import eventually

pytestmark = pytest.mark.runners

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy/grafana/millrace.json").read_text())
ROWS = [{"prompt": "a", "max_tokens": 1000}, {"prompt": "b", "deadline": 1e-9}]
"""The first takes 50 s, which no test waits for."""
JOBS = ("first", "second")
IDLE = {"Drafted tokens that were right"}
"""Panels of what nothing does here: 0 of 0."""
Found = dict[str, list[dict[str, Any]]]
"""The series that each query of a panel has found, by the query's legend."""


class Watched(NamedTuple):
    """What a Prometheus has seen."""

    models: list[str]
    """What the variable of the dashboard has to choose from."""
    panels: dict[str, Found]
    """By title, once all of a panel was there: a scrape that comes too late empties all panels for a moment."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Requests that came, and two jobs that ran, while it scraped. A job alone knows of rows that were never sent."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(fake_server(folder / "rt", step=0.05))
        prometheus = stack.enter_context(scraping(f"127.0.0.1:{server.port}", folder / "scraped"))
        for name in JOBS:
            job = stack.enter_context(running_job(folder, name))
            stack.callback(job.terminate)
        numbers, panels = count(), dict[str, Found]()
        eventually(lambda: look(prometheus, server, next(numbers), panels), "each panel has data")
        yield Watched(models(prometheus), panels)


def running_job(folder: Path, name: str) -> subprocess.Popen[bytes]:
    run = [sys.executable, "-m", "millrace", "run", "--backend=fake", f"--input={folder}/in.jsonl", "--quiet"]
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder / "rt")}
    return subprocess.Popen([*run, f"--output={folder}/out/{name}"], env=environment)


def look(prometheus: Prometheus, server: Server, number: int, panels: dict[str, Found]) -> bool:
    """Send a request of each kind; whether each panel has had data by now."""
    body = {"prompt": [5, 6], "max_tokens": 3, "guided_regex": f"[ab]{{{number + 1}}}"}
    assert server.post("/v1/completions", body).status_code == 200
    for panel in DASHBOARD["panels"]:
        if panel["title"] not in panels and is_whole(panel, found := panel_data(prometheus, panel)):
            panels[panel["title"]] = found
    return len(panels) == len(DASHBOARD["panels"])


def is_whole(panel: dict[str, Any], found: Found) -> bool:
    """Whether each query has series, in a panel of jobs one of each job, and where something is done a number."""
    return all(
        (has_all_jobs(each) if is_of_jobs(panel) else len(each) > 0)
        and (panel["title"] in IDLE or any(not math.isnan(float(series["value"][1])) for series in each))
        for each in found.values()
    )


def has_all_jobs(series: list[dict[str, Any]]) -> bool:
    """The server's own requests are a job too."""
    return all(any(f"out/{name}" in each["metric"].get("job_name", "") for each in series) for name in JOBS)


def is_of_jobs(panel: dict[str, Any]) -> bool:
    return "millrace:job_" in panel["targets"][0]["expr"]


def models(prometheus: Prometheus) -> list[str]:
    """What the variable of models finds, asked as Grafana does."""
    (query,) = (each["query"] for each in DASHBOARD["templating"]["list"] if each["name"] == "model_name")
    asked = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", query)
    assert asked is not None
    found: list[str] = prometheus.asked(f"label/{asked[2]}/values", **{"match[]": asked[1]})
    return found


def panel_data(prometheus: Prometheus, panel: dict[str, Any]) -> Found:
    """What each query of a panel finds, with the variables as Grafana fills them."""
    data: Found = {}
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", "1m").replace("$model_name", ".*")
        assert "$" not in expression
        data[target["legendFormat"]] = prometheus.asked("query", query=expression)["result"]
    return data


def legends(found: Found) -> list[str]:
    """The legend of each series, as Grafana makes it: a label that is not there is empty."""
    return [legend_of(legend, series["metric"]) for legend, each in found.items() for series in each]


def legend_of(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda named: labels.get(named[1], ""), legend)


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_each_series_of_a_panel_has_a_legend_of_its_own(watched: Watched, panel: dict[str, Any]) -> None:
    shown = Counter(legends(watched.panels[panel["title"]]))
    assert [legend for legend, times in shown.items() if times > 1] == []
    if is_of_jobs(panel):
        assert all(any(f"out/{name}" in legend for legend in shown) for name in JOBS)


def test_the_variable_finds_the_models_there_are(watched: Watched) -> None:
    assert watched.models == ["millrace-tiny"]
