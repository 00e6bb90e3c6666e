"""The template's metadata: nothing here starts anything, so that it can be run before every change of a flag lands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.dataflow.flex_template import flags_of
from millrace.pipelines.dataflow.metadata import metadata
from millrace.pipelines.flags.job_options import parse

DEPLOY = Path(__file__).parents[3] / "deploy/dataflow"
FILE = json.loads((DEPLOY / "metadata.json").read_text(encoding="utf-8"))
PARAMETERS = {parameter["name"]: parameter for parameter in FILE["parameters"]}
GOOD = {
    "command": ["run", "score", "embed", "extract", "classify"],
    "sdk_container_image": ["us-docker.pkg.dev/p/r/millrace:0.1.0", "gcr.io/p/m@sha256:" + "0" * 64],
    "input": ["gs://b/in/*.jsonl", "gs://b/a.jsonl gs://b/b.csv.gz", '["gs://b/a b.jsonl"]'],
    "output": ["gs://b/out/c", "pubsub:projects/p/topics/answers"],
    "dead_letters": ["kafka:host:9092/t"],
    "model": ["org/name", "gs://b/model", "millrace-tiny", "/opt/models/m", "gpt-4o"],
    "backend": ["vllm", "openvino"],
    "endpoint": ["https://host/v1", "http://a:8000 http://b:8000"],
    "gpu": ["none", "l4", "a100-80gb:8"],
    "overwrite": ["true", "false"],
    "max_tokens": ["128"],
    "constraint": ['{"json": true}'],
    "template": ["Summarize: {text}"],
    "temperature": ["0.7", "1", "1e-3"],
    "stop": ["END", '["a b", "c"]'],
    "stop_token_ids": ["1", "1 2 3"],
    "logit_bias": ['{"5": -100}'],
    "dtype": ["bfloat16"],
    "linger": ["5.0"],
    "lateness": ["0", "3600"],
}
BAD = {
    "command": ["ps", "run;ps"],
    "sdk_container_image": ["millrace", "us-docker.pkg.dev/p/r/m:1 --x"],
    "input": ["/etc/passwd", "gs://", ""],
    "output": ["out/c", "gs://b/c d", "watch:gs://b/c"],
    "dead_letters": ["out/c"],
    "model": ["name with spaces", "m;ls", ""],
    "backend": ["vlm", ""],
    "endpoint": ["host:8000", "https://a,https://b x"],
    "gpu": ["k80", "l4:0", "l4:"],
    "overwrite": ["yes", "True", "1"],
    "max_tokens": ["many", "1.5", ""],
    "temperature": ["hot", "1."],
    "template": ["Summarize", "template.txt", "{}"],
    "stop_token_ids": ["a", "1,2"],
    "logit_bias": ["5=1"],
    "dtype": ["int3"],
    "linger": ["5s"],
    "lateness": ["1h", "inf"],
}


OF_OTHER_ENGINES = {"model": ["org/name/x.gguf", "gs://b/m/x.gguf"], "backend": ["endpoint", "llama_cpp"]}
"""Good beside other parameters."""


def matches(name: str, value: str) -> bool:
    return all(re.search(regex, value) for regex in PARAMETERS[name]["regexes"])


def test_the_file_is_what_the_flags_say() -> None:
    assert metadata() == FILE, "run: python -m millrace.pipelines.dataflow.metadata > deploy/dataflow/metadata.json"


def test_every_parameter_is_labelled_explained_and_validated_over_its_whole_length() -> None:
    for parameter in PARAMETERS.values():
        assert parameter["label"]
        assert parameter["helpText"]
        (regex,) = parameter["regexes"]
        assert regex[0] == "^"
        assert regex[-1] == "$"
        assert not re.search(r"\\[sdwb]|\(\?", regex), "the service's expressions are POSIX's"
    required = {name for name, parameter in PARAMETERS.items() if not parameter.get("isOptional")}
    assert required == {"input", "output", "sdk_container_image"}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_parameter_takes_matches(name: str) -> None:
    assert [value for value in GOOD[name] if not matches(name, value)] == []


@pytest.mark.parametrize("name", BAD)
def test_what_it_does_not_take_does_not(name: str) -> None:
    assert [value for value in BAD[name] if matches(name, value)] == []


def test_every_good_value_is_one_that_the_command_takes() -> None:
    ours: dict[str, Any] = {name: values for name, values in GOOD.items() if name != "command"}
    for name, values in ours.items():
        for value in values:
            given = {"input": "gs://b/a"} | {name: value}
            _, flags = flags_of([f"--{each}={text}" for each, text in given.items()] + ["--runner=DataflowRunner"])
            parse(flags)


@pytest.mark.parametrize("name", list(OF_OTHER_ENGINES))
def test_what_another_engine_takes_passes(name: str) -> None:
    assert all(matches(name, value) for value in OF_OTHER_ENGINES[name])
