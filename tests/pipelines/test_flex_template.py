import re
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.flags.options import parse
from millrace.pipelines.flex_template import flags_of

DEPLOY = Path(__file__).parents[2] / "deploy/dataflow"


def test_parameters_become_the_flags_of_the_command() -> None:
    command, flags = flags_of(
        [
            *("--command=score", "--input=gs://b/a gs://b/b", "--output=gs://b/o", "--overwrite=true"),
            *("--fail_fast=false", "--prefix_caching=false", "--model=org/m", "--project=p"),
            *("--runner=DataflowRunner", "--gpu=l4:2"),
        ]
    )
    assert command == "score"
    options = parse(flags, "score")
    assert ([str(each) for each in options.input], options.if_exists) == (["gs://b/a", "gs://b/b"], "overwrite")
    assert not options.fail_fast
    assert options.model.prefix_caching is False
    assert options.gpu is not None
    assert options.gpu.count == 2


def test_a_list_says_where_a_value_ends() -> None:
    _, flags = flags_of(["--input=gs://b/a", '--stop=["a b", "c"]', "--stop_token_ids=1 2"])
    assert parse(flags).sampling.stop == ("a b", "c")
    assert parse(flags).sampling.stop_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("--command=ps", "command=ps: takes run, score, embed"),
        ("--overwrite=yes", "overwrite=yes: takes true or false"),
        ("--stop=[1", "stop=[1: takes a JSON list of strings"),
    ],
)
def test_what_is_wrong_is_one_sentence(parameter: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flags_of([parameter])
    assert told in str(caught.value)


def test_the_image_is_made_of_files_that_are_here_and_of_the_beam_that_is_pinned() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    root = DEPLOY.parents[1]
    assert [name for names in copied for name in names if not (root / name).exists()] == []
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert {name for names in copied for name in names} == allowed
    pinned = re.search(r"^apache-beam==([\d.]+)", (root / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"ARG BEAM_VERSION={pinned[1]}" in lines
    assert "ARG PYTHON_VERSION=3.11" in lines
