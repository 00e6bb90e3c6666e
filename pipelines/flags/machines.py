"""Machine types and GPUs of Google Cloud, as `--machine_type` and `--gpu` name them; the smallest that a model fits on.

Knows no Beam, no network, no prices.
Sizes: https://cloud.google.com/compute/docs/general-purpose-machines and …/gpus. Memory in GB, as those pages count.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from millrace.model_manager.wire.errors import ConfigError

_GB_PER_VCPU = {
    "n1-standard": 3.75,
    "n1-highmem": 6.5,
    "n1-highcpu": 0.9,
    "t2d-standard": 4.0,
    "c2-standard": 4.0,
    "n2-standard": 4.0,
    "n2-highmem": 8.0,
    "n2-highcpu": 1.0,
    "e2-standard": 4.0,
    "e2-highmem": 8.0,
    "n2d-standard": 4.0,
    "n2d-highmem": 8.0,
    "n2d-highcpu": 1.0,
    "c2d-standard": 4.0,
    "c2d-highmem": 8.0,
    "c3-standard": 4.0,
    "c3-highmem": 8.0,
    "c3-highcpu": 2.0,
    "n4-standard": 4.0,
    "n4-highmem": 8.0,
    "g2-standard": 4.0,
}


@dataclass(frozen=True)
class MachineType:
    """A machine's size; `gpus` are those that come with the type."""

    name: str
    vcpus: int
    memory_gb: float
    gpus: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU that Dataflow attaches to workers."""

    name: str
    """As `--gpu` takes it."""
    accelerator: str
    """As Google Cloud calls it."""
    memory_gb: int
    family: str
    """What the names of the machines it goes with begin with."""
    machines: tuple[MachineType, ...] = ()
    """Smallest first. Empty: it is attached to machines of n1, as many as asked for."""


def _g2(vcpus: int, gpus: int) -> MachineType:
    return MachineType(f"g2-standard-{vcpus}", vcpus, 4.0 * vcpus, gpus)


_L4 = (_g2(8, 1), _g2(12, 1), _g2(16, 1), _g2(32, 1), _g2(24, 2), _g2(48, 4), _g2(96, 8))
_A100 = tuple(MachineType(f"a2-highgpu-{n}g", 12 * n, 85.0 * n, n) for n in (1, 2, 4, 8))
_A100_80 = tuple(MachineType(f"a2-ultragpu-{n}g", 12 * n, 170.0 * n, n) for n in (1, 2, 4, 8))
_H100 = (MachineType("a3-highgpu-8g", 208, 1872.0, 8),)
_N1 = tuple(
    MachineType(f"n1-{kind}-{vcpus}", vcpus, _GB_PER_VCPU[f"n1-{kind}"] * vcpus)
    for vcpus in (8, 16, 32)
    for kind in ("standard", "highmem")
)

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("l4", "nvidia-l4", 24, "g2-", _L4),
        Gpu("t4", "nvidia-tesla-t4", 16, "n1-"),
        Gpu("a100", "nvidia-tesla-a100", 40, "a2-highgpu-", _A100),
        Gpu("a100-80gb", "nvidia-a100-80gb", 80, "a2-ultragpu-", _A100_80),
        Gpu("h100", "nvidia-h100-80gb", 80, "a3-highgpu-", _H100),
    )
}
_WITH_GPUS = {machine.name: machine for gpu in GPUS.values() for machine in gpu.machines}
_CPU_MACHINES = tuple(
    MachineType(f"n2-{kind}-{vcpus}", vcpus, _GB_PER_VCPU[f"n2-{kind}"] * vcpus)
    for vcpus in (8, 16, 32, 48, 64, 80)
    for kind in ("standard", "highmem")
)
"""n2 has AVX-512 with VNNI, which the CPU's kernels are written in."""


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs of one worker."""

    gpu: Gpu
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> GpuRequest | None:
        """`l4`, `l4:2`, or `none`; raises ConfigError."""
        if text == "none":
            return None
        name, _, count = text.partition(":")
        if name not in GPUS or not re.fullmatch(r"[1-9]\d?|", count) or text.endswith(":"):
            raise ConfigError(f"--gpu {text}: takes none, {', '.join(GPUS)}, or several as {next(iter(GPUS))}:2")
        return cls(GPUS[name], int(count or 1))

    @classmethod
    def of_accelerator(cls, text: str) -> GpuRequest | None:
        """Read Dataflow's own `type:nvidia-l4;count:1;…`; None for a GPU that is not known here."""
        named = dict(part.split(":", 1) for part in text.split(";") if ":" in part)
        gpu = next((gpu for gpu in GPUS.values() if gpu.accelerator == named.get("type")), None)
        count = named.get("count", "")
        return cls(gpu, int(count)) if gpu and count.isdecimal() and int(count) else None

    def accelerator(self, machine: MachineType) -> str:
        """Dataflow's hint for these GPUs on a machine. Dataflow then installs the driver.

        5xx is the newer of two lines of drivers: some GPUs get one otherwise that is older than what CUDA 12 takes.
        """
        return f"type:{self.gpu.accelerator};count:{self.count};machine_type:{machine.name};install-nvidia-driver:5xx"

    def smallest_machine(self, memory_gb: float) -> MachineType:
        """The smallest with these GPUs and so much memory; raises ConfigError."""
        machines = [each for each in self.gpu.machines if each.gpus == self.count] if self.gpu.machines else list(_N1)
        if not machines:
            counts = sorted({machine.gpus for machine in self.gpu.machines})
            raise ConfigError(f"--gpu {self.gpu.name}:{self.count}: machines have {_listed(counts)} of them")
        return _smallest(machines, memory_gb, f"with {self.count} {self.gpu.accelerator}")


def cpu_machine(memory_gb: float) -> MachineType:
    """The smallest without a GPU that has so much memory; raises ConfigError."""
    return _smallest(list(_CPU_MACHINES), memory_gb, "of n2")


def machine_type(name: str) -> MachineType | None:
    """A machine type by its name; None for one whose size its name does not tell."""
    if name in _WITH_GPUS:
        return _WITH_GPUS[name]
    kind, _, vcpus = name.rpartition("-")
    if kind not in _GB_PER_VCPU or not vcpus.isdecimal() or not int(vcpus):
        return None
    return MachineType(name, int(vcpus), _GB_PER_VCPU[kind] * int(vcpus))


def memory_needed(weights_gb: float, *, on_gpu: bool) -> float:
    """GB of main memory of a machine that runs a model: a rule for choosing one, by the size of the files alone.

    The manager on that machine decides by store/memory.py, which reads the files and the settings of one engine.
    8 GB are for the system and Beam's workers. On a CPU, add the weights twice: loading uses the second half first,
    the KV cache later. With a GPU, add the weights once: files are read through the page cache.
    """
    return 8 + math.ceil(weights_gb * (1 if on_gpu else 2))


def disk_needed(weights_gb: float) -> int:
    """GB of a worker's disk: 50 for the system, the image and the packages; weights twice, so that a model may change.

    In tens.
    """
    return math.ceil((50 + 2 * weights_gb) / 10) * 10


def _smallest(machines: list[MachineType], memory_gb: float, which: str) -> MachineType:
    large_enough = [machine for machine in machines if machine.memory_gb >= memory_gb]
    if not large_enough:
        most = max(machine.memory_gb for machine in machines)
        raise ConfigError(
            f"--model: needs about {memory_gb:.0f} GB of memory, and the largest machine {which} has {most:.0f} GB;"
            " name a larger one with --machine_type"
        )
    return min(large_enough, key=lambda machine: (machine.vcpus, machine.memory_gb))


def _listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts[:-1])) + f" or {counts[-1]}" if len(counts) > 1 else str(counts[0])
