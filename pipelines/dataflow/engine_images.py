"""Other engines on Dataflow: what a worker's image must hold for them, said before anything is built."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

from millrace.model_manager.wire.backends import BACKENDS, Backend
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError

from ..flags.machines import GpuRequest


def check_engine_of_image(model: ModelConfig, beam: PipelineOptions) -> None:
    """Raises ConfigError for an engine that Beam's own image cannot hold. What an image of yours holds is not known."""
    backend, image = BACKENDS[model.backend], beam.view_as(WorkerOptions).sdk_container_image
    if backend.packages and not image:
        raise ConfigError(
            f"--backend {backend.name}: --sdk_container_image is missing, and Beam's own image has no environment for"
            f" this engine: build one from deploy/dataflow/Dockerfile in millrace's repository, with --build-arg"
            f" ENGINE={backend.name}"
        )
    if backend.servers == "started" and not image and not _installs(beam):
        raise ConfigError(
            "--backend server: --sdk_container_image is missing, and Beam's own image has no such server: name an image"
            " that has it, or install it with --requirements_file or --extra_package"
        )


def _installs(beam: PipelineOptions) -> bool:
    setup = beam.view_as(SetupOptions)
    return bool(setup.requirements_file or setup.setup_file or setup.extra_packages)


def check_gpus_of_engine(model: ModelConfig, gpu: GpuRequest | None, accelerator: str | None) -> None:
    """Raises ConfigError for GPUs that the engine would leave idle, and for none where its image is made for them.

    `accelerator`: what every worker has, in Dataflow's words.
    """
    backend = BACKENDS[model.backend]
    if accelerator and "install-nvidia-driver" not in accelerator:
        raise ConfigError(
            f"--dataflow_service_options worker_accelerator={accelerator}: workers get no driver; add"
            " ;install-nvidia-driver:5xx at its end"
        )
    asked = f"--gpu {gpu.gpu.name}" if gpu else "worker_accelerator" if accelerator else ""
    if asked and not backend.uses_gpus:
        raise ConfigError(f"{asked}: the back end {backend.name} uses no NVIDIA GPU; leave it out")
    if not asked and backend.cuda_packages and model.device != "cpu":
        raise ConfigError(
            f"--backend {backend.name}: takes --gpu, such as --gpu l4; or, if its image is built with"
            " ENGINE_DEVICE=cpu, --device cpu"
        )


def told(backend: Backend) -> str:
    """What an image is expected to hold beside the package."""
    if backend.packages:
        return f", with the engine as --build-arg ENGINE={backend.name} puts it there"
    return ", with the server's program" if backend.servers == "started" else ""
