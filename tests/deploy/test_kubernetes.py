"""deploy/kubernetes: what Kubernetes takes, and what millrace takes. No test runs a cluster."""

from __future__ import annotations

import copy
import functools
import operator
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from jsonschema import Draft202012Validator

from millrace.model_manager.wire.address import TcpAddress, parse_address
from millrace.model_manager.wire.manager_place import ADDRESS_VARIABLE, KEY_VARIABLE
from millrace.pipelines.commands.manager import manager_parser
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.runners.worker_pool import DEFAULT_ADDRESS
from tests.deploy.manifests import FOLDER, ROOT, container, objects, pod, variables
from tests.model_manager.backends.environments import made, named
from tests.servers import flink_operator

PODS = ("DaemonSet", "Job", "FlinkDeployment")
_VALIDATOR = "kubernetes_validate"


def test_the_manager_and_the_job_are_commands_that_there_are() -> None:
    parser, _ = manager_parser()
    command, *arguments = container("DaemonSet")["args"]
    assert command == "manager"
    flags = parser.parse_args(arguments)
    assert flags.listen == "tcp://0.0.0.0:7070"
    command, *arguments = container("Job")["args"]
    assert command == "run"
    assert parse(arguments).model.model == "org/name"
    assert container("FlinkDeployment")["args"] == ["worker-pool", "--address", DEFAULT_ADDRESS]


def test_a_job_finds_the_manager_of_its_node_and_both_hold_the_same_key() -> None:
    service = objects()["Service"]
    address = parse_address(variables("Job")[ADDRESS_VARIABLE], ADDRESS_VARIABLE)
    (port,) = service["spec"]["ports"]
    assert address == TcpAddress(service["metadata"]["name"], port["port"])
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    (named_port,) = container("DaemonSet")["ports"]
    assert (named_port["name"], named_port["containerPort"]) == (port["targetPort"], 7070)
    labels = objects()["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert variables("FlinkDeployment") == variables("Job")
    keys = [(variables(kind)[KEY_VARIABLE], pod(kind)["volumes"][0]["secret"]) for kind in PODS]
    assert keys[0] == keys[1] == keys[2]
    made_by = (FOLDER / "manager.yaml").read_text()
    secret, file = re.findall(r"create secret generic (\S+) --from-file=(\S+)", made_by)[0]
    assert (keys[0][1]["secretName"], Path(keys[0][0]).name) == (secret, file)


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_is_the_images_user_who_alone_can_read_the_key(kind: str) -> None:
    user = re.search(r"useradd .*--uid (\d+)", (ROOT / "deploy" / "Dockerfile").read_text())
    assert user is not None
    settings = pod(kind)["securityContext"] | container(kind)["securityContext"]
    assert {settings[name] for name in ("runAsUser", "fsGroup")} == {int(user[1])}
    assert pod(kind)["volumes"][0]["secret"]["defaultMode"] == 0o440, "root's file, of the pod's group"


@pytest.mark.runners
def test_flinks_operator_takes_its_cluster() -> None:
    cluster = objects()["FlinkDeployment"]
    _, version = cluster["apiVersion"].split("/")
    takes = Draft202012Validator(flink_operator.deployment_schema(version))
    assert [error.message for error in takes.iter_errors(cluster)] == []

    def refused(*path: str, to: Any) -> str:
        """What the schema says where one field is another."""
        changed = copy.deepcopy(cluster)
        place = functools.reduce(operator.getitem, path[:-1], changed)
        place[path[-1]] = to
        (error,) = takes.iter_errors(changed)
        return str(error.message)

    assert "'v0_9' is not one of" in refused("spec", "flinkVersion", to="v0_9")
    assert "'two' is not of type 'number'" in refused("spec", "taskManager", "resource", "cpu", to="two")
    assert "'slots' was unexpected" in refused("spec", "jobManager", "slots", to=1)
    assert "'nodes' was unexpected" in refused("spec", "taskManager", "podTemplate", "spec", "nodes", to={})


@pytest.mark.engines
@pytest.mark.parametrize("kind", ["Service", *PODS])
def test_kubernetes_takes_it(kind: str, tmp_path: Path) -> None:
    if _VALIDATOR not in named():
        pytest.skip("ENGINES names others")
    checked = objects()[kind]
    if kind == "FlinkDeployment":  # Kubernetes knows its pod alone; the operator's schema has the rest
        checked = {"apiVersion": "v1", "kind": "Pod", "metadata": checked["metadata"], "spec": pod(kind)}
    (tmp_path / "checked.yaml").write_text(yaml.safe_dump(checked))
    command = [str(made(_VALIDATOR)), "-m", "kubernetes_validate", "--strict", str(tmp_path / "checked.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
