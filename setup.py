"""The millrace distribution. Beam stages it to workers with `--setup_file ./setup.py`."""

import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
if not (HERE / "millrace" / "transforms").is_dir():
    raise SystemExit("millrace/ lacks its links, which zip archives drop: use git clone or a .tar.gz")
shutil.rmtree(HERE / "build" / "lib", ignore_errors=True)  # setuptools would add what an earlier build has left there

# An editable install puts src/ on the path. From "." setuptools would add a finder, which loses to a folder named
# millrace beside a program: a checkout has that name.
SOURCES = "src" if "editable_wheel" in sys.argv else "."

CLIENT = [
    "aiohttp>=3.10,<4",
    "apache-beam[gcp]>=2.77,<3",
    "confluent-kafka>=2.6,<3",
    "cryptography>=43",
    "google-cloud-pubsub>=2.18,<3",
    "google-cloud-storage>=3.1,<4",
    "huggingface-hub>=1,<3",
    "jinja2>=3.1,<4",
    "llguidance>=1.9,<2",
    "markupsafe>=2.1,<4",
    "msgspec>=0.21,<1",
    "numpy>=2,<3",
    "pandas>=2,<3",  # Beam imports it for YAML, and wherever it finds itself in IPython
    "psutil>=7,<8",
    "pyarrow>=19",
    "pyyaml>=6",
    "regex>=2025.1",
    "rich>=14",
    "tokenizers>=0.22,<1",
]
ENGINE = [
    "accelerate>=1,<2",
    "numba>=0.63,<1",
    "safetensors>=0.6,<1",
    "torch>=2.9,<3",
    "transformers>=5.20,<6",
]
# What is built from a source distribution requires the engine: Beam makes one of --setup_file, and its workers build
# it. So a wheel for clients is built from a checkout.
WORKER = ["beam-millrace[engine]"] if (HERE / "PKG-INFO").exists() else []
SERVE = [
    "httptools>=0.6,<1",
    "prometheus-client>=0.21,<1",
    "python-multipart>=0.0.20,<1",
    "starlette>=0.46,<2",
    "uvicorn>=0.34,<1",
    "uvloop>=0.21,<1",
]
TRACES = [
    "opentelemetry-exporter-otlp-proto-http>=1.34,<2",
    "opentelemetry-sdk>=1.34,<2",
]
PLOTS = ["matplotlib>=3.10,<4"]
DOCS = ["mkdocs-material>=9.8,<10", "mkdocstrings[python]>=1,<2"]
S3 = ["boto3>=1.36,<2"]
NOTEBOOK = ["ipykernel>=6", *PLOTS]

setup(
    name="beam-millrace",
    version="0.1.0",
    description="Millions of prompts through a language model: an Apache Beam pipeline with its own engine.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    # No project_urls: the repository has no public address yet. They belong here once it has one.
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=find_packages(SOURCES, include=["millrace*"]),
    package_dir={"": SOURCES},
    package_data={
        "millrace": ["py.typed"],
        "millrace.model_manager.store": ["embedded/**/*"],
        "millrace.pipelines.commands": ["*.yaml"],
        "millrace.pipelines.pages": ["templates/*"],
        "millrace.serving.window": ["static/*"],
    },
    install_requires=[*CLIENT, *WORKER],
    extras_require={
        "engine": ENGINE,
        "bench": PLOTS,
        "serve": SERVE,
        "traces": TRACES,
        "s3": S3,
        "notebook": NOTEBOOK,
        "docs": DOCS,
        "dev": [
            *ENGINE,
            *NOTEBOOK,
            *DOCS,
            *SERVE,
            *TRACES,
            *S3,
            "gcp-storage-emulator",
            "httpx",
            "hypothesis",
            "hypothesis-jsonschema",
            "import-linter",
            "mypy",
            "nbclient",
            "nbformat",
            "openai",
            "playwright",
            "pydantic",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": [
            "millrace = millrace.__main__:main",
            "millrace-worker = millrace.pipelines.runners.sdk_worker:main",
        ]
    },
)
