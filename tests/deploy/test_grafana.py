"""The dashboard asks for metrics and labels that there are. No test starts Grafana."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.metrics.scrapes import every_metric

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy/grafana/millrace.json").read_text())
SAMPLES = [sample for family in every_metric() for sample in family.samples]
SCRAPED = {"instance"}
"""Labels that Prometheus adds."""


def targets() -> Iterator[dict[str, Any]]:
    return (target for panel in DASHBOARD["panels"] for target in panel["targets"])


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        names = re.findall(r"millrace:\w+", target["expr"])
        assert names
        assert set(names) <= {sample.name for sample in SAMPLES}


def test_each_label_in_a_panel_is_one_of_its_metric() -> None:
    for target in targets():
        known = {label for each in SAMPLES if each.name in target["expr"] for label in each.labels} | SCRAPED
        grouped = ",".join(re.findall(r"by \(([\w, ]+)\)", target["expr"])).replace(" ", "").split(",")
        chosen = re.findall(r"\{(\w+)=", target["expr"])
        assert {*filter(None, grouped), *chosen, *re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known


def test_the_data_source_is_a_variable() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource", "model_name"}
    chosen = {each["datasource"]["uid"] for each in (*DASHBOARD["panels"], *targets())}
    assert chosen == {"${datasource}"}


def test_panels_have_a_place_and_a_number_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in DASHBOARD["panels"]})
