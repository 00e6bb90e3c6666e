"""Prices of workers, from a file that says when they were last compared with the provider's."""

from __future__ import annotations

import tomllib
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import msgspec

from millrace.model_manager.wire.conversion import converted
from millrace.model_manager.wire.errors import ConfigError

from ..flags.file_flags import read_text
from ..flags.machines import GPUS, GpuRequest, machine_type


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine whose size its name does not tell."""

    vcpus: int
    memory_gb: float


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All by the hour, in one currency. Raises ConfigError for a negative one."""

    checked: date
    """The day on which someone compared them with the provider's page."""
    currency: str
    region: str = ""
    vcpu: float
    memory_gb: float
    disk_gb: float = 0.0
    gpus: dict[str, float] = {}
    """Prices of GPUs, by the names that `--gpu` takes."""
    machines: dict[str, Size] = {}
    """Sizes of machines that are not known by their names."""
    machine_hours: dict[str, float] = {}
    """Whole machines, GPUs and all, whose price is not the sum of parts: another provider's, or a commitment's."""

    def __post_init__(self) -> None:
        plain = {"vcpu": self.vcpu, "memory_gb": self.memory_gb, "disk_gb": self.disk_gb}
        for name, price in (plain | self.gpus | self.machine_hours).items():
            if price < 0:
                raise ConfigError(f"{name}={price}: a price takes 0 or more")
        if unknown := set(self.gpus) - set(GPUS):
            raise ConfigError(f"gpus.{min(unknown)}: takes the names of --gpu: {', '.join(GPUS)}")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a TOML file. Raises ConfigError that names the file."""
        text = read_text("--prices", str(path), "; takes a TOML file of prices")
        try:
            fields: dict[str, Any] = tomllib.loads(text)
            return converted(fields, cls, ConfigError, what="price")
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--prices {path}: takes TOML: {error}") from None
        except ConfigError as error:
            example = ", such as `checked = 2026-11-01`" if str(error).startswith("checked is missing") else ""
            raise ConfigError(f"--prices {path}: {error}{example}") from None

    def parts(self, machine: str, gpu: GpuRequest | None, disk_gb: int) -> dict[str, Fraction]:
        """What an hour of a worker is made of, by the names of the parts; raises ConfigError for what has no price."""
        disk = {f"{disk_gb} GB of disk": disk_gb * exactly(self.disk_gb)}
        if machine in self.machine_hours:
            return {machine: exactly(self.machine_hours[machine])} | disk
        size = self.machines.get(machine) or machine_type(machine)
        if size is None:
            raise ConfigError(f"--prices: has neither machines.{machine}, its size, nor machine_hours.{machine}")
        parts = {
            f"{size.vcpus} vCPUs": size.vcpus * exactly(self.vcpu),
            f"{size.memory_gb:g} GB of memory": exactly(size.memory_gb) * exactly(self.memory_gb),
        }
        return parts | self._gpus(gpu) | disk

    def _gpus(self, gpu: GpuRequest | None) -> dict[str, Fraction]:
        if gpu is None:
            return {}
        if gpu.gpu.name not in self.gpus:
            raise ConfigError(f"--prices: has no gpus.{gpu.gpu.name}")
        return {f"{gpu.count} × {gpu.gpu.name}": gpu.count * exactly(self.gpus[gpu.gpu.name])}


def exactly(number: float) -> Fraction:
    """The number as it was written, not the nearest binary one."""
    return Fraction(str(number))
