"""Servers that are known: how each is started, its health route, what it speaks and which parameters it takes beyond.

From the servers' own documentation; docs/how-to/servers.md says which were run here. Knows no process.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SERVERS = Path(__file__).absolute().parents[1] / "backends" / "server"
_VLLM = (
    "top_k,min_p,repetition_penalty,min_tokens,ignore_eos,stop_token_ids,include_stop_str_in_output,bad_words,"
    "allowed_token_ids"
)
VLLM_THREADS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # Beam's workers need cores too
    "OMP_WAIT_POLICY": "PASSIVE",  # and threads that spin while they wait for each other would take them
}
"""Variables of a vLLM that computes on a CPU; on a GPU they change nothing."""


@dataclass(frozen=True)
class Preset:
    """One kind of server."""

    command: str
    """Its arguments; `{model}`, `{port}` and `{tensor_parallel}` are filled in."""
    dialect: str = "openai"
    health: str = "/health"
    extra_parameters: str = ""
    max_connections: int = 64
    takes_revision: bool = False
    """Its command takes `--revision`: a branch, tag or commit of a hub name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it is started with, where the environment has none of the name."""


PRESETS = {
    "vllm": Preset(
        "vllm serve {model} --host 127.0.0.1 --port {port} --tensor-parallel-size {tensor_parallel}",
        extra_parameters=f"{_VLLM},constraint,return_token_ids",
        environment=VLLM_THREADS,
        takes_revision=True,
    ),
    "aphrodite": Preset(
        "aphrodite run {model} --host 127.0.0.1 --port {port} --tensor-parallel-size {tensor_parallel}",
        extra_parameters=f"{_VLLM},typical_p",
        takes_revision=True,
    ),
    "sglang": Preset(
        "python -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port} --tp {tensor_parallel}",
        extra_parameters="top_k,min_p,repetition_penalty,min_tokens,ignore_eos,stop_token_ids",
        takes_revision=True,
    ),
    "lmdeploy": Preset(
        "lmdeploy serve api_server {model} --server-name 127.0.0.1 --server-port {port} --tp {tensor_parallel}",
        extra_parameters="top_k,repetition_penalty,ignore_eos",
        takes_revision=True,
    ),
    "trtllm": Preset(
        "trtllm-serve {model} --host 127.0.0.1 --port {port} --tp_size {tensor_parallel}",
        extra_parameters="top_k,min_p,repetition_penalty,min_tokens,ignore_eos,stop_token_ids",
    ),
    "mii": Preset(
        "python -m mii.entrypoints.openai_api_server --model {model} --host 127.0.0.1 --port {port}"
        " --tensor-parallel {tensor_parallel}",
        dialect="mii-chat",
    ),
    "optimum-nvidia": Preset(
        f"python {shlex.quote(str(_SERVERS / 'optimum_nvidia.py'))} {{model}} {{port}}",
        dialect="openai-completions",
        extra_parameters="top_k,repetition_penalty",
        max_connections=2,  # it runs one request at a time
    ),
    "powerinfer": Preset(
        "server --model {model} --host 127.0.0.1 --port {port} --ctx-size 8192 --parallel 4 --cont-batching",
        dialect="llama-completion",
        health="/props",
        max_connections=3,  # a slot is free a moment after its answer; without a free one it answers 404
    ),
    "llama-server": Preset(
        "llama-server --model {model} --host 127.0.0.1 --port {port}",
        extra_parameters="top_k,min_p,typical_p,logprobs",
        max_connections=4,  # each connection holds one of its few threads, idle ones for 5 s
    ),
    "tgi": Preset(
        "text-generation-launcher --model-id {model} --hostname 127.0.0.1 --port {port} --num-shard {tensor_parallel}",
        dialect="tgi",
        takes_revision=True,
    ),
    "ray": Preset("serve run {model}", health="/-/healthz"),
    "triton": Preset(
        "tritonserver --model-repository {model} --http-address 127.0.0.1 --http-port {port} --allow-grpc false"
        " --allow-metrics false",
        dialect="triton",
        health="/v2/health/ready",
    ),
}
"""The presets by their names."""
