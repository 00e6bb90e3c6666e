import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.dataflow.flex_template import flags_of
from millrace.pipelines.flags.job_options import parse


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
