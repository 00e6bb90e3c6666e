from typing import Any

import pytest
from apache_beam.options.pipeline_options import DebugOptions, GoogleCloudOptions, PipelineOptions, WorkerOptions

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.dataflow.workers import ONE_PROCESS, ArrangedWorkers, arrange_workers, table
from millrace.pipelines.flags.machines import GpuRequest

WEIGHTS = 16_000_000_000
SERVICE = "--dataflow_service_options=worker_accelerator=type:nvidia-l4;count:1"
DRIVEN = f"{SERVICE};install-nvidia-driver"


def arranged(
    *flags: str,
    gpu: str = "none",
    model: ModelConfig | None = None,
    weights: int | None = WEIGHTS,
    stream: bool = False,
) -> tuple[PipelineOptions, ArrangedWorkers]:
    given = PipelineOptions(list(flags))
    before = given.get_all_options()
    workers = arrange_workers(given, model or ModelConfig(), GpuRequest.parse(gpu), weights, stream=stream)
    assert given.get_all_options() == before, "a job's options are as they were parsed"
    return workers.beam, workers


def worker(options: PipelineOptions) -> Any:
    return options.view_as(WorkerOptions)


def test_without_a_gpu_all_steps_run_on_machines_that_hold_the_model() -> None:
    options, workers = arranged()
    assert worker(options).machine_type == "n2-highmem-8"
    assert worker(options).disk_size_gb == 90
    assert workers.resource_hints == {}
    assert options.view_as(GoogleCloudOptions).dataflow_service_options is None


def test_a_gpu_is_hinted_for_the_models_step_and_other_steps_have_small_machines() -> None:
    options, workers = arranged(gpu="l4")
    accelerator = "type:nvidia-l4;count:1;machine_type:g2-standard-8;install-nvidia-driver:5xx"
    assert workers.resource_hints == {"accelerator": accelerator, "min_ram": "24GB"}
    assert worker(options).machine_type == "n2-standard-2"
    assert options.view_as(GoogleCloudOptions).dataflow_service_options is None
    assert options.view_as(DebugOptions).experiments == [ONE_PROCESS]


def test_a_stream_asks_for_pools_of_its_own_too() -> None:
    options, workers = arranged(gpu="l4", stream=True)
    assert "accelerator" in workers.resource_hints
    assert set(options.view_as(DebugOptions).experiments) == {ONE_PROCESS, "enable_streaming_rightfitting"}


def test_a_machine_of_the_gpus_family_is_meant_for_the_model_and_another_for_the_rest() -> None:
    options, workers = arranged("--machine_type=g2-standard-16", gpu="l4")
    assert "machine_type:g2-standard-16;" in workers.resource_hints["accelerator"]
    assert worker(options).machine_type == "n2-standard-2"
    options, workers = arranged("--worker_machine_type=e2-standard-4", gpu="l4")
    assert "machine_type:g2-standard-8;" in workers.resource_hints["accelerator"]
    assert worker(options).machine_type == "e2-standard-4"


def test_beams_own_flags_win() -> None:
    flags = ["--disk_size_gb=11", "--number_of_worker_harness_threads=2", "--machine_type=n1-standard-1"]
    options, workers = arranged(*flags, "--experiments=use_multiple_sdk_containers", "--max_num_workers=3")
    assert (worker(options).disk_size_gb, worker(options).machine_type) == (11, "n1-standard-1")
    assert options.view_as(DebugOptions).number_of_worker_harness_threads == 2
    assert options.view_as(DebugOptions).experiments == ["use_multiple_sdk_containers"]
    shown = dict(workers.shown)
    assert shown["SDK processes"] == "use_multiple_sdk_containers, 2 threads"
    assert shown["workers"] == "as many as Dataflow chooses at first, at most 3"


def test_gpus_for_all_workers_need_no_hints() -> None:
    options, workers = arranged(DRIVEN, "--machine_type=g2-standard-8")
    assert workers.resource_hints == {}
    assert worker(options).machine_type == "g2-standard-8"
    assert dict(workers.shown)["all steps"] == "type:nvidia-l4;count:1;install-nvidia-driver on g2-standard-8"
    options, _ = arranged(DRIVEN)
    assert worker(options).machine_type == "g2-standard-8", "an L4 goes with no machine of Dataflow's own choice"
    new = "type:new;count:1;install-nvidia-driver"
    _, workers = arranged(f"--dataflow_service_options=worker_accelerator={new}")
    assert dict(workers.shown)["all steps"] == f"{new} on a machine of Dataflow's choice"
    with pytest.raises(ConfigError, match="leave one of them out"):
        arranged(DRIVEN, gpu="l4")


@pytest.mark.parametrize(
    ("flags", "gpu", "model", "told"),
    [
        (["--flexrs_goal=COST_OPTIMIZED"], "l4", ModelConfig(), "--gpu l4 and --flexrs_goal exclude each other"),
        ([], "l4", ModelConfig(device="cpu"), "--device cpu would not use it"),
        ([], "none", ModelConfig(device="cuda"), "--device cuda needs --gpu"),
        ([], "l4:2", ModelConfig(tensor_parallel=4), "the engines take 4 GPUs"),
        ([], "l4:4", ModelConfig(tensor_parallel=2, num_engines=3), "the engines take 6 GPUs"),
        (["--machine_type=g2-standard-24"], "l4", ModelConfig(), "has 2 GPUs, and --gpu asks for 1"),
        (["--machine_type=g2-standard-8"], "l4:2", ModelConfig(), "has 1 GPU, and --gpu asks for 2"),
        ([SERVICE], "none", ModelConfig(), "count:1: workers get no driver; add ;install-nvidia-driver:5xx at its end"),
        ([], "l4", ModelConfig(backend="openvino"), "--gpu l4: the back end openvino uses no NVIDIA GPU"),
        ([DRIVEN], "none", ModelConfig(backend="fake"), "worker_accelerator: the back end fake uses no"),
        ([], "none", ModelConfig(backend="vllm"), "--backend vllm: takes --gpu, such as --gpu l4; or, if its image"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: list[str], gpu: str, model: ModelConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        arranged(*flags, gpu=gpu, model=model)


def test_vllm_computes_on_gpus_unless_told_otherwise() -> None:
    _, workers = arranged(gpu="l4", model=ModelConfig(backend="vllm"))
    assert workers.resource_hints["accelerator"].endswith("install-nvidia-driver:5xx")
    arranged(DRIVEN, model=ModelConfig(backend="vllm"))
    _, workers = arranged(model=ModelConfig(backend="vllm", device="cpu"))
    assert workers.resource_hints == {}


def test_weights_that_no_gpu_memory_holds_are_refused_unless_they_are_rounded_or_divided() -> None:
    large = 30_000_000_000
    with pytest.raises(ConfigError, match=r"30\.0 GB of weights, and an engine has 24 GB"):
        arranged(gpu="l4", weights=large)
    arranged(gpu="l4", weights=large, model=ModelConfig(quantization="int4"))
    arranged(gpu="l4:2", weights=large, model=ModelConfig(tensor_parallel=2))


def test_shared_memory_is_of_use_to_an_engine_on_several_gpus_alone() -> None:
    shown = [
        dict(arranged(gpu="l4:2", model=ModelConfig(tensor_parallel=gpus))[1].shown)["shared memory"] for gpus in (1, 2)
    ]
    assert shown[0] == "none is asked for: processes talk through sockets"
    assert "NCCL" in shown[1]


def test_a_size_that_is_not_known_is_said_to_be_taken() -> None:
    options, workers = arranged(weights=None)
    assert dict(workers.shown)["weights"] == "not known, taken to be 16 GB"
    assert worker(options).disk_size_gb == 90


def test_the_table_is_aligned() -> None:
    assert table("T", [("a", "1"), ("long", "2")]) == ["T", "  a     1", "  long  2"]
