"""The engines and servers that whole jobs run over: how each is started, and where its processes are."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.job_rows import Takes, taken_by
from tests.model_manager.backends.real_servers import (
    PROGRAMS,
    VLLM_SERVER,
    answers,
    environment_of,
    python_of,
    serve_config,
)
from tests.pipelines.job.job_processes import engines_of
from tests.servers.processes import free_port, listening, serving

ENGINES: dict[str, dict[str, Any]] = {
    "torch": {"max_num_seqs": 8, "dtype": "float32", "kv_cache_gib": 1},
    "llama_cpp": {"max_num_seqs": 8},
    "openvino": {"max_num_seqs": 8, "dtype": "float32", "kv_cache_gib": 1},
    "ctranslate2": {"max_num_seqs": 8, "dtype": "float32"},
    "vllm": {"max_num_seqs": 16, "dtype": "float32", "kv_cache_gib": 1},
}
"""Settings by back end: few sequences at once, so that a job lasts long enough for what is done to it."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "llama_cpp": {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn_type": "disabled"},
    "vllm": {"enforce_eager": True},
}
"""With llama.cpp's flash attention a seeded row's answer depends on those beside it."""
SERVERS = ("llama-server", "vllm-server", "triton", "ray")
"""Servers that millrace starts."""
ENDPOINT = "endpoint"
"""Two of llama.cpp's servers that somebody else runs."""
_SLOTS = 4
"""Requests that each of these answers at once (programs/llama.py)."""


@dataclass(frozen=True)
class Subject:
    """An engine under test, or a server."""

    backend: str
    settings: dict[str, Any]
    options: dict[str, Any]
    takes: Takes
    is_server: bool = False
    """millrace starts a server."""
    shares: bool = False
    """The server has files outside its folder, in shared memory say."""
    replaces_its_listener: bool = False
    """It starts another process at its port when that one is killed, so millrace need not start it again."""
    seen: dict[str, str] = field(default_factory=dict)
    """Texts of seeded rows, by their ids, as jobs so far had them."""

    @property
    def flags(self) -> list[str]:
        """The flags that make `millrace run` use this back end, with its settings and options."""
        settings = {"linger": 0.5, "orphan_grace": 0.5, "backend": self.backend} | self.settings
        options = [f"{name}={_shown(value)}" for name, value in self.options.items()]
        return [
            *(f"--{name}={value}" for name, value in settings.items()),
            *(["--backend_options", *options] * bool(options)),
        ]

    def of_server(self, runtime: Path) -> list[psutil.Process]:
        """The processes of the server that millrace has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child for each in engines(runtime) for child in each.children(recursive=True) if self.is_server]
        return []

    def answerer(self, runtime: Path) -> psutil.Process | None:
        """The process that answers: the inference process, or the one that listens at the port of the server that it
        has started; None between two.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            found = self.of_server(runtime) if self.is_server else engines(runtime)
            if self.is_server:
                found = [process for process in found if self.options["port"] in ports_of(process)]
            return min(found, key=psutil.Process.create_time, default=None)  # children may have inherited its socket
        return None

    def files_used(self, runtime: Path) -> set[Path]:
        """What the processes of a server use in /dev/shm, and where Triton runs its model from."""
        found = set[Path]()
        for process in self.of_server(runtime):
            with contextlib.suppress(OSError, psutil.Error):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                arguments = "\n".join(process.cmdline())
                found |= {Path(each) for each in re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE)}
                found |= {Path(each) for each in re.findall(r"^/tmp/folder[^/\n]{6}(?=/)", arguments, re.MULTILINE)}
        return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def engines(runtime: Path) -> list[psutil.Process]:
    """The inference processes."""
    return [psutil.Process(pid) for pid in engines_of(runtime)]


def ports_of(process: psutil.Process) -> set[int]:
    """Where it takes connections."""
    with contextlib.suppress(psutil.Error):
        return {port for _, port in listening(process.pid)}
    return set()


def subject_named(name: str, folder: Path, engine_python: Callable[[str], Path]) -> Subject:
    """Over the embedded model, where it is an engine for models. `folder` gets the files that it needs."""
    if name == ENDPOINT:
        return _endpoint()
    if name in SERVERS:
        return _server(name, folder)
    settings, options = ENGINES[name], _OPTIONS.get(name, {})
    if name != "torch":
        engine_python(name)
    if name == "llama_cpp":
        settings = {"model": write_gguf(folder / "tiny-f32.gguf")} | settings
    return Subject(name, settings, options, taken_by(name, options))


def _endpoint() -> Subject:
    """Each server gets as many requests as it has slots for."""
    options = {
        "urls": ",".join(f"http://127.0.0.1:{free_port()}" for _ in range(2)),
        "extra_parameters": "ignore_eos,logprobs",
        "max_connections": _SLOTS,
    }
    return Subject(
        ENDPOINT,
        {"model": "tiny", "max_num_seqs": 2 * _SLOTS},
        options,
        taken_by(ENDPOINT, options, limit=_LLAMA_LIMIT),
    )


_LLAMA_LIMIT = r"answered 400: request \(\d+ tokens\) exceeds the available context"


def _server(name: str, folder: Path) -> Subject:
    port, slow = free_port(), name == "vllm-server"  # on a busy machine its health route takes seconds
    options: dict[str, Any] = {"hang_timeout": 30 if slow else 5, "port": port}
    limit, inputs = "", frozenset[str]()
    match name:
        case "llama-server":
            model, limit = str(write_gguf(folder / "tiny-f32.gguf")), _LLAMA_LIMIT
            command = shlex.join([*python_of("llama_cpp"), str(PROGRAMS / "llama.py"), "{model}", "{port}"])
            options |= {"preset": "llama-server", "dialect": "llama-completion"}
        case "vllm-server":
            model, limit = str(resolve(EMBEDDED_MODEL)), "answered 400: .*context length"
            alone = "env OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind"  # its threads spin
            command = f"{alone} {environment_of('vllm')} {VLLM_SERVER}"
            options |= {"preset": "vllm"}
        case "triton":
            model = "m"
            words = [*python_of("pytriton"), str(PROGRAMS / "triton.py"), "{port}", str(free_port()), str(folder)]
            command = shlex.join(words)
            options |= {"preset": "triton", "health": "/v2/models/m/ready"}
            inputs = frozenset(("seed", "stop"))
        case _:
            model, limit = str(serve_config(folder, port)), "maximum context length is 64 words"
            command = f"{environment_of('ray').with_name('serve')} run {{model}}"
            options |= {"preset": "ray", "dialect": "openai-completions", "served_model": "m"}
    has_model = name not in ("triton", "ray")
    return Subject(
        "server",
        {"model": model, "max_num_seqs": 32 if slow else 8},
        options | {"command": command},
        taken_by("server", options, inputs=inputs, has_model=has_model, limit=limit),
        is_server=True,
        shares=name == "triton",
        replaces_its_listener=name == "ray",
    )


class Outsider:
    """A server of llama.cpp's that somebody else runs."""

    def __init__(self, url: str, folder: Path, stack: contextlib.ExitStack) -> None:
        self._url = url
        self._folder = folder
        self._stack = stack
        self.process = self._started()

    def start_again(self) -> None:
        """Once it was killed; as soon as it answers."""
        self.process = self._started()

    def _started(self) -> psutil.Process:
        port = self._url.rpartition(":")[2]
        model = write_gguf(self._folder / f"tiny-{port}.gguf")
        command: list[str | Path] = [*python_of("llama_cpp"), PROGRAMS / "llama.py", model, port]
        elsewhere = {"MILLRACE_RUNTIME_DIR": ""}  # millrace knows nothing of it
        log = self._folder / f"server-{port}.log"
        server = serving(command, lambda: answers(f"{self._url}/health"), log=log, environment=elsewhere)
        return psutil.Process(self._stack.enter_context(server).pid)


@contextlib.contextmanager
def outsiders(options: Mapping[str, Any], folder: Path) -> Iterator[list[Outsider]]:
    """The servers at the URLs among these options; none of them, where there are none."""
    with contextlib.ExitStack() as stack:
        yield [Outsider(url, folder, stack) for url in options.get("urls", "").split(",") if url]
