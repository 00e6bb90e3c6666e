from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.pipelines.flags.job_options import parse
from millrace.transforms.addresses import Files
from millrace.transforms.runners import has_checkpoints

INPUT = ["--input", "a.jsonl"]


def test_without_flags_the_defaults_hold() -> None:
    options = parse(INPUT)
    assert options.model == ModelConfig(model=EMBEDDED_MODEL)
    assert options.sampling == SamplingParams(max_tokens=128)
    assert options.manager == ManagerConfig(orphan_grace=120.0)
    assert (options.input, options.output, options.if_exists) == (
        [Files("a.jsonl")],
        Files("out/completions"),
        "refuse",
    )


def test_flags_become_settings() -> None:
    flags = "--model org/m --dtype bfloat16 --quantization int4 --kv_cache_dtype int8 --max_num_seqs 8"
    flags += " --no-prefix_caching --max_tokens 7 --temperature 0.5"
    flags += ' --logit_bias {"5":-100} --allowed_token_ids 5 6 --bad_words x --logprobs 2 --min_p 0.1 --min_tokens 3'
    flags += " --include_stop_str_in_output --repetition_penalty 1.5 --typical_p 0.5"
    flags += " --stop a b --stop_token_ids 1 2 --ignore_eos --linger 2 --chat never --backend fake --no-row_params"
    options = parse([*INPUT, *flags.split()])
    assert options.model == ModelConfig(
        model="org/m",
        dtype="bfloat16",
        quantization="int4",
        kv_cache_dtype="int8",
        max_num_seqs=8,
        prefix_caching=False,
        backend="fake",
    )
    assert options.sampling == SamplingParams(
        max_tokens=7,
        temperature=0.5,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        logit_bias={5: -100.0},
        allowed_token_ids=(5, 6),
        bad_words=("x",),
        logprobs=2,
        min_p=0.1,
        min_tokens=3,
        include_stop_str_in_output=True,
        repetition_penalty=1.5,
        typical_p=0.5,
    )
    assert (options.manager.linger, options.chat, options.row_params) == (2.0, False, False)


def test_models_are_all_of_them_or_those_beside_the_model() -> None:
    options = parse([*INPUT, "--models", "org/a, org/b,org/c", "--max_num_seqs", "8"])
    assert [each.model for each in (options.model, *options.models)] == ["org/a", "org/b", "org/c"]
    assert {each.max_num_seqs for each in (options.model, *options.models)} == {8}
    options = parse([*INPUT, "--model", "org/b", "--models", "org/a,org/b"])
    assert [each.model for each in (options.model, *options.models)] == ["org/b", "org/a"]


def test_inputs_add_up() -> None:
    assert parse(["--input", "a", "b", "--input", "c"]).input == [Files("a"), Files("b"), Files("c")]


def test_other_flags_are_beams() -> None:
    options = parse([*INPUT, "--runner=FnApiRunner", "--direct_num_workers", "3", "--experiments=x"])
    assert options.beam.view_as(StandardOptions).runner == "FnApiRunner"
    assert options.beam.view_as(DirectOptions).direct_num_workers == 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--input is missing"),
        ([*INPUT, "--max_token", "3"], "unknown flag --max_token: did you mean --max_tokens?"),
        ([*INPUT, "--max-tokens=3"], "unknown flag --max-tokens: did you mean --max_tokens?"),
        ([*INPUT, "--batch_size=8"], "unknown flag --batch_size: did you mean --max_num_seqs? Most sequences that run"),
        ([*INPUT, "--tensor_parallel_size=2"], "did you mean --tensor_parallel? "),
        ([*INPUT, "--gpu_memory_utilization", "0.9"], "did you mean --kv_cache_gib? Size of the KV cache in GiB"),
        ([*INPUT, "--temp=1"], "did you mean --temperature? 0 is greedy"),
        ([*INPUT, "--max-new-tokens=5"], "unknown flag --max-new-tokens: did you mean --max_tokens? Most tokens"),
        ([*INPUT, "--runer=x"], "unknown flag --runer: did you mean --runner?"),
        ([*INPUT, "--frobnicate"], "unknown flag --frobnicate: --help lists all"),
        ([*INPUT, "--max_tokens", "many"], "--max_tokens many: takes an integer"),
        ([*INPUT, "--logit_bias", "5=1"], "--logit_bias: takes a JSON object, got '5=1'"),
        ([*INPUT, "--max_tokens", "0"], "max_tokens=0: takes 1 to 2**63 - 1"),
        ([*INPUT, "--block_size", "7"], "block_size=7: takes 8, 16, 32, 64 or 128"),
        ([*INPUT, "--linger", "-1"], "linger=-1: takes a finite number of 0 or more"),
        ([*INPUT, "--dtype", "int3"], "--dtype int3: takes auto, bfloat16"),
        ([*INPUT, "--direct_num_workers", "x"], "--direct_num_workers x: takes an integer"),
        ([*INPUT, "--overwrite", "--resume"], "--overwrite and --resume exclude each other"),
        ([*INPUT, "--models", "a,,b"], "--models a,,b: takes names of models"),
        ([*INPUT, "--models", "a,a"], "--models a,a: takes two models or more; one alone is --model a"),
        ([*INPUT, "--models", "a,b", "--model_updates", "watch:f"], "--models and --model_updates exclude each other"),
        ([*INPUT, "--backend", "gpu"], "backend"),
        (
            [*INPUT, "--backend", "vllm", "--endpoint", "http://a"],
            "--endpoint needs --backend endpoint; leave it out",
        ),
        (["stray", *INPUT], "unexpected argument 'stray'"),
        ([*INPUT, "--schema", "s.json"], "--schema: millrace run does not take it; extract takes it"),
        ([*INPUT, "--labels=a,b"], "--labels: millrace run does not take it; classify takes it"),
        ([*INPUT, "--constraint", '{"regex": "(a"}'], "--constraint: regex: "),
        ([*INPUT, "--constraint", '{"json_schema": {"type": "strin"}}'], "--constraint: json_schema: "),
        ([*INPUT, "--constraint", '{"grammar": "begin: A"}'], "--constraint: grammar: "),
        ([*INPUT, "--constraint", "{}"], "--constraint: takes one of regex, json_schema, "),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_flag(flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(flags)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_constraint_that_compiles_is_taken() -> None:
    constraint = parse([*INPUT, "--constraint", '{"regex": "(a|b)+"}']).sampling.constraint
    assert constraint is not None
    assert constraint.regex == "(a|b)+"


def test_labels_are_the_jobs_on_dataflow() -> None:
    beam = parse([*INPUT, "--labels", "team=a", "--runner=DataflowRunner"]).beam
    assert beam.get_all_options()["labels"] == ["team=a"]


@pytest.mark.parametrize(
    ("runner", "told"),
    [
        ("os.path", "names no class of a runner: takes DirectRunner, "),
        ("json.JSONDecoder", "names no class of a runner: takes DirectRunner, "),
        (".X", "names no class: takes DirectRunner, PrismRunner, "),
        ("FooRunner", "there is no such runner: takes DirectRunner, PrismRunner, FlinkRunner, PortableRunner, "),
        ("Flnik", "there is no such runner: did you mean FlinkRunner?"),
        ("prsmrunner", "did you mean PrismRunner?"),
        (
            "millrace.nothing.FlinkRunner",
            "millrace.nothing cannot be imported (No module named 'millrace.nothing'): takes DirectRunner, ",
        ),
        ("millrace.pipelines.runners.prism.NoPrism", "prism has no NoPrism: did you mean OwnPrism?"),
        ("millrace.pipelines.runners.prism.Absent", "prism has no Absent: takes DirectRunner, PrismRunner, "),
    ],
)
def test_a_runner_that_there_is_not_is_told(runner: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([*INPUT, "--runner", runner])
    assert str(caught.value).startswith(f"--runner {runner}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "runner", ["directrunner", "Flink", "millrace.pipelines.runners.prism.OwnPrism", "DataflowRunner"]
)
def test_runners_are_known_as_beam_knows_them(runner: str) -> None:
    parse([*INPUT, "--runner", runner])


def test_options_that_only_a_job_server_knows_are_left_to_it() -> None:
    remote = ["--runner=PortableRunner", "--job_endpoint=localhost:8099"]
    parse([*INPUT, *remote, "--parallelism=2"])
    with pytest.raises(ConfigError, match="did you mean --max_tokens"):
        parse([*INPUT, *remote, "--max_token=2"])


def test_options_of_flink_are_known_where_flink_may_be() -> None:
    remote = ["--runner=PortableRunner", "--job_endpoint=localhost:8099"]
    assert has_checkpoints(parse([*INPUT, *remote, "--checkpointing_interval", "500"]).beam)
    with pytest.raises(ConfigError, match="did you mean --checkpointing_interval"):
        parse([*INPUT, *remote, "--checkpoint_interval=500"])
    with pytest.raises(ConfigError, match="unknown flag --checkpointing_interval"):
        parse([*INPUT, "--checkpointing_interval=500"])


def test_help_groups_the_flags_and_says_defaults_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for expected in ("input:", "output:", "model:", "engine:", "manager (times in seconds):", "run:"):
        assert expected in shown
    for field in (*SamplingParams.__struct_fields__, *ManagerConfig.__struct_fields__, "kv_cache_gib"):
        assert f"--{field}" in shown
    assert "Default: 128." in shown
    assert "Size of the KV cache in GiB" in shown
    assert "--backend_options NAME=VALUE" in shown
    assert "Default: ." not in shown


def test_embed_loads_vllm_otherwise_than_run() -> None:
    flags = [*INPUT, "--backend", "vllm"]
    assert parse(flags).model.backend_options == {}
    assert parse(flags, "embed").model.backend_options == {"runner": "pooling"}


def test_servers_have_flags_of_their_own() -> None:
    options = parse([*INPUT, "--endpoint", "http://a", "http://b", "--backend_options", "dialect=tgi"])
    assert options.model.backend == "endpoint"
    assert options.model.backend_options == {"urls": "http://a,http://b", "dialect": "tgi"}
    options = parse([*INPUT, "--server_command", "serve {model} --port={port}"])
    assert options.model.backend == "server"
    assert options.model.backend_options == {"command": "serve {model} --port={port}"}
    options = parse([*INPUT, "--backend", "server", "--backend_options", "command=serve --port={port}", "retries=1"])
    assert options.model.backend_options == {"command": "serve --port={port}", "retries": 1}


def test_every_setting_has_a_help_text() -> None:
    from millrace.model_manager.wire.field_docs import field_docs

    settings: list[Any] = [ModelConfig, ManagerConfig, SamplingParams]
    for each in settings:
        assert all(field_docs(each)[name] for name in each.__struct_fields__)


def test_generations_may_be_kept_in_the_runners_state_and_nothing_else() -> None:
    assert parse([*INPUT, "--stateful"]).stateful
    assert not parse(INPUT).stateful
    with pytest.raises(ConfigError, match=r"^--stateful: millrace \w+ does not take it; run and extract take it$"):
        parse([*INPUT, "--stateful"], "score")


def test_workers_elsewhere_are_given_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--input", "in/*.jsonl", "gs://bucket/a.jsonl", "--output", "out/c", "--dead_letters", "out/l"]
    assert [str(each) for each in parse(flags).input] == ["in/*.jsonl", "gs://bucket/a.jsonl"]
    elsewhere = parse([*flags, "--runner=FlinkRunner"])
    assert [str(each) for each in elsewhere.input] == [f"{tmp_path}/in/*.jsonl", "gs://bucket/a.jsonl"]
    assert (str(elsewhere.output), str(elsewhere.letters)) == (f"{tmp_path}/out/c", f"{tmp_path}/out/l")
