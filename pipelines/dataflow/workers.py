"""Options of a Dataflow job's workers: Beam's own flags win, and what they leave open is chosen for the model.

With a GPU the step that runs the model has resource hints, for which Dataflow makes a pool of workers of their own
(https://cloud.google.com/dataflow/docs/guides/right-fitting); all other steps run on machines without one. Without a
GPU all steps share one pool, whose machines are large enough for the model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, counted

from ..flags.machines import GpuRequest, MachineType, cpu_machine, disk_needed, machine_type, memory_needed
from .engine_images import check_gpus_of_engine

ONE_PROCESS = "no_use_multiple_sdk_containers"
"""One SDK container, and one process in it, a worker: each container would have a manager, and engines, of its own."""
_STREAMING_POOLS = "enable_streaming_rightfitting"
_THREADS = 4
"""Bundles at a time: while one ends, the others keep the engine full."""
_OTHER_STEPS = "n2-standard-2"
_UNKNOWN_WEIGHTS_GB = 16.0
"""Taken where they are not known: a model of 8 billion parameters in 16 bits."""
_GB = 1e9

TableRow = tuple[str, str]


@dataclass(frozen=True)
class ArrangedWorkers:
    """What a job asks of its workers."""

    beam: PipelineOptions
    """Beam's options, completed."""
    resource_hints: dict[str, str] = field(default_factory=dict)
    """Beam's resource hints for the step that runs the model."""
    shown: list[TableRow] = field(default_factory=list)
    """Rows of text for the user: the option, and its value."""


def arrange_workers(
    beam: PipelineOptions, model: ModelConfig, gpu: GpuRequest | None, weights: int | None, *, stream: bool
) -> ArrangedWorkers:
    """Completes a copy of `beam` for a model with so many bytes of weights (None: not known); raises ConfigError."""
    beam = copy.deepcopy(beam)
    weights_gb = _UNKNOWN_WEIGHTS_GB if weights is None else weights / _GB
    accelerator = _accelerator_for_all(beam)
    check_gpus_of_engine(model, gpu, accelerator)
    if accelerator:
        _refuse_both(gpu)
        machines: list[TableRow] = [
            ("all steps", f"{accelerator} on {_machine_for_all(beam, accelerator, weights_gb)}")
        ]
        hints: dict[str, str] = {}
    elif gpu:
        hints, machines = _gpu_pool(beam, model, gpu, weights, weights_gb, stream=stream)
    else:
        hints, machines = {}, [("all steps", _cpu_pool(beam, model, weights_gb))]
    processes = _one_process(beam)
    size = f"not known, taken to be {_UNKNOWN_WEIGHTS_GB:.0f} GB" if weights is None else _size(weights)
    shown = [
        ("weights", size),
        *machines,
        ("SDK processes", processes),
        ("disk", _disk(beam, weights_gb)),
        ("shared memory", _shared_memory(model)),
        ("workers", _scaling(beam)),
    ]
    return ArrangedWorkers(beam, hints, shown)


def _size(weights: int) -> str:
    return f"{weights / _GB:.1f} GB" if weights >= _GB else f"{weights / 1e6:.1f} MB"


def _gpu_pool(
    beam: PipelineOptions, model: ModelConfig, gpu: GpuRequest, weights: int | None, weights_gb: float, *, stream: bool
) -> tuple[dict[str, str], list[TableRow]]:
    """The hints of the model's step, and the machines of both pools."""
    if beam.view_as(GoogleCloudOptions).flexrs_goal:
        raise ConfigError(
            f"--gpu {gpu.gpu.name} and --flexrs_goal exclude each other: the model's step has workers of its own with a"
            " GPU, and FlexRS gives no step its own workers; leave one out"
        )
    _check_gpus(model, gpu, weights)
    if stream:
        beam.view_as(DebugOptions).add_experiment(_STREAMING_POOLS)
    worker, memory = beam.view_as(WorkerOptions), memory_needed(weights_gb, on_gpu=True)
    machine = gpu.smallest_machine(memory)
    if asked := _machine_with_gpu(worker, gpu):
        machine, worker.machine_type = asked, None
    worker.machine_type = worker.machine_type or _OTHER_STEPS
    memory = int(min(memory, machine.memory_gb))
    hints = {"accelerator": gpu.accelerator(machine), "min_ram": f"{memory}GB"}
    of_model = f"{gpu.count} × {gpu.gpu.accelerator} with driver on {machine.name}, {memory} GB of memory or more"
    return hints, [("the model's step", of_model), ("other steps", str(worker.machine_type))]


def _machine_with_gpu(worker: WorkerOptions, gpu: GpuRequest) -> MachineType | None:
    """The type that --machine_type names, if it belongs to the GPU's family: then it is meant for the model's step."""
    name = str(worker.machine_type or "")
    if not name.startswith(gpu.gpu.family):
        return None
    machine = machine_type(name) or MachineType(name, 0, float("inf"))
    if machine.gpus not in (0, gpu.count):
        raise ConfigError(
            f"--machine_type {name}: has {counted(machine.gpus, 'GPU')}, and --gpu asks for {gpu.count}:"
            f" takes --gpu {gpu.gpu.name}:{machine.gpus}, or another type"
        )
    return machine


def _check_gpus(model: ModelConfig, gpu: GpuRequest, weights: int | None) -> None:
    """What would be known only after workers had started, and cost."""
    if model.device == "cpu":
        raise ConfigError(f"--gpu {gpu.gpu.name}: --device cpu would not use it; leave one of the two out")
    used = model.tensor_parallel * (model.num_engines or 1)
    if used > gpu.count:
        raise ConfigError(
            f"--gpu {gpu.gpu.name}:{gpu.count}: the engines take {counted(used, 'GPU')}"
            f" (tensor_parallel={model.tensor_parallel}, num_engines={model.num_engines or 1}): takes"
            f" --gpu {gpu.gpu.name}:{used} or more, or lower values of these"
        )
    room = gpu.gpu.memory_gb * model.tensor_parallel
    if weights and model.quantization == "none" and model.dtype == "auto" and weights / _GB > room:
        raise ConfigError(
            f"--gpu {gpu.gpu.name}: {model.model} has {weights / _GB:.1f} GB of weights, and an engine has {room} GB of"
            " GPU memory; take a larger one, several with --tensor_parallel, or --quantization"
        )


def _cpu_pool(beam: PipelineOptions, model: ModelConfig, weights_gb: float) -> str:
    if model.device == "cuda":
        raise ConfigError("--device cuda needs --gpu, for example --gpu l4")
    worker, memory = beam.view_as(WorkerOptions), memory_needed(weights_gb, on_gpu=False)
    if worker.machine_type:
        return str(worker.machine_type)
    machine = cpu_machine(memory)
    worker.machine_type = machine.name
    return f"{machine.name} ({machine.memory_gb:.0f} GB of memory; the model needs about {memory:.0f})"


def _accelerator_for_all(beam: PipelineOptions) -> str | None:
    """What Beam's own flags say of GPUs for every worker; right fitting does not go together with that."""
    asked = (
        *(beam.view_as(GoogleCloudOptions).dataflow_service_options or []),
        *(beam.view_as(DebugOptions).experiments or []),
    )
    return next((each.partition("=")[2] for each in asked if each.startswith("worker_accelerator=")), None)


def _refuse_both(gpu: GpuRequest | None) -> None:
    if gpu:
        raise ConfigError(
            f"--gpu {gpu.gpu.name}: gives GPUs to one step, worker_accelerator gives them to all; leave one of them out"
        )


def _machine_for_all(beam: PipelineOptions, accelerator: str, weights_gb: float) -> str:
    worker, gpu = beam.view_as(WorkerOptions), GpuRequest.of_accelerator(accelerator)
    if gpu and not worker.machine_type:
        worker.machine_type = gpu.smallest_machine(memory_needed(weights_gb, on_gpu=True)).name
    return str(worker.machine_type or "a machine of Dataflow's choice")


def _one_process(beam: PipelineOptions) -> str:
    debug = beam.view_as(DebugOptions)
    of_containers = [each for each in debug.experiments or [] if "multiple_sdk_containers" in each]
    of_containers += [each for each in debug.experiments or [] if "use_sibling_sdk_workers" in each]
    if not of_containers:
        debug.add_experiment(ONE_PROCESS)
    if debug.number_of_worker_harness_threads is None:
        debug.number_of_worker_harness_threads = _THREADS
    threads = counted(debug.number_of_worker_harness_threads, "thread")
    return f"{', '.join(of_containers)}, {threads}" if of_containers else f"one a worker ({ONE_PROCESS}), {threads}"


def _disk(beam: PipelineOptions, weights_gb: float) -> str:
    worker = beam.view_as(WorkerOptions)
    if worker.disk_size_gb is None:
        worker.disk_size_gb = disk_needed(weights_gb)
    return f"{worker.disk_size_gb} GB a worker"


def _shared_memory(model: ModelConfig) -> str:
    """The shared memory of a worker's container, for the eye. No option of Dataflow is known to set it."""
    if model.tensor_parallel == 1:
        return "none is asked for: processes talk through sockets"
    return "as much as the container has: with --tensor_parallel NCCL may use it, and Dataflow takes no wish for more"


def _scaling(beam: PipelineOptions) -> str:
    worker = beam.view_as(WorkerOptions)
    first, most = worker.num_workers, worker.max_num_workers
    if worker.autoscaling_algorithm == "NONE":
        return f"{first or 'as many as Dataflow starts with'}, not scaled"
    return f"{first or 'as many as Dataflow chooses'} at first, at most {most or 'as many as your quota allows'}"


def is_streaming(beam: PipelineOptions) -> bool:
    """Whether `--streaming` says so; Dataflow finds unbounded input by itself later."""
    return bool(beam.view_as(StandardOptions).streaming)


def table(title: str, rows: Sequence[TableRow]) -> list[str]:
    """Lines, aligned."""
    width = max(len(name) for name, _ in rows)
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
