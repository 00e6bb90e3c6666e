"""The way of this package to workers on other machines: from a checkout, from where it is installed, or in their image.

A checkout has its setup.py, from which Beam builds a source distribution. An installed package has none: its files are
put into a wheel again, as they are listed by the installer. Both require the extra `engine`: workers run the engine.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import Literal

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

from millrace.model_manager.wire.errors import ConfigError

_NAME = "beam-millrace"
_OF_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Metadata files about the installation, not about the package."""

PackageSource = Literal["asked for", "image", "checkout", "installed"]


@dataclass(frozen=True)
class Package:
    """What brings the package to the workers."""

    source: PackageSource
    setup_file: Path | None = None
    """The setup.py of a checkout."""

    def __str__(self) -> str:
        return {
            "asked for": "as --setup_file or --extra_package say",
            "image": "the one in the image",
            "checkout": f"built from {self.setup_file}",
            "installed": "the installed one, as a wheel",
        }[self.source]

    @contextlib.contextmanager
    def staged(self, options: PipelineOptions) -> Iterator[PipelineOptions]:
        """A copy of `options` that ships the package; a wheel that is made for it goes at the end."""
        options = copy.deepcopy(options)
        setup = options.view_as(SetupOptions)
        with tempfile.TemporaryDirectory(prefix="millrace-wheel-") as folder:
            if self.setup_file:
                setup.setup_file = str(self.setup_file)
            elif self.source == "installed":
                wheel = wheel_of(distribution(_NAME), Path(folder))
                setup.extra_packages = [*(setup.extra_packages or []), str(wheel)]
            yield options


def find_package(options: PipelineOptions) -> Package:
    """Find the package by the flags, else by this file's folder. Raises ConfigError if neither tells."""
    setup = options.view_as(SetupOptions)
    ours = [path for path in setup.extra_packages or [] if Path(path).name.startswith(f"{_NAME.replace('-', '_')}-")]
    if setup.setup_file or ours:
        return Package("asked for")
    if options.view_as(WorkerOptions).sdk_container_image:
        return Package("image")
    setup_file = Path(__file__).resolve().parents[2] / "setup.py"
    if setup_file.is_file() and f'name="{_NAME}"' in setup_file.read_text(encoding="utf-8"):
        return Package("checkout", setup_file)
    try:
        if any(str(file) == "millrace/pipelines/dataflow/package.py" for file in distribution(_NAME).files or []):
            return Package("installed")
    except PackageNotFoundError:
        pass
    raise ConfigError(
        "--setup_file is missing: millrace is neither a checkout here nor installed; name its setup.py, or give"
        " --extra_package a source distribution of it, or --sdk_container_image an image that has it"
    )


def wheel_of(installed: Distribution, folder: Path) -> Path:
    """A wheel of the files of an installed distribution, for any Python 3 and platform; it holds no compiled code.

    The format: https://packaging.python.org/en/latest/specifications/binary-distribution-format
    """
    name, version = installed.metadata["Name"].replace("-", "_"), installed.version
    files = [file for file in installed.files or [] if _belongs(file)]
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"{name}-{version}.dist-info"
    record: list[str] = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            content = Path(str(installed.locate_file(file))).read_bytes()
            if file.as_posix() == f"{metadata}/METADATA":  # fields, an empty line, README
                content = content.replace(b"\n\n", f"\nRequires-Dist: {_NAME}[engine]\n\n".encode(), 1)
            archive.writestr(file.as_posix(), content)
            record.append(f"{file.as_posix()},sha256={_digest(content)},{len(content)}")
        archive.writestr(f"{metadata}/RECORD", "\n".join([*record, f"{metadata}/RECORD,,", ""]))
    return wheel


def _belongs(file: PackagePath) -> bool:
    """Whether a file is the package's own. An installer adds scripts elsewhere, compiled modules and its own notes."""
    if file.is_absolute() or ".." in file.parts or "__pycache__" in file.parts:
        return False
    return not (file.parts[0].endswith(".dist-info") and file.name in _OF_INSTALLERS)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
