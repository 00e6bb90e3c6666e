"""Counts the greedy answers of each engine that differ from `model.generate`'s, all in float32, and says why.

    python -m benchmarks.agreement --engines vllm,llama-server --results benchmarks/results/agreement.json

300 prompts of examples/prompts, the embedded model, up to 64 tokens each; texts are compared. Engines must be installed
(`millrace engines install NAME`). Where an answer first differs, `model.generate` had two likeliest tokens: how far
their logits are apart tells whether rounding decided between them. The last line is JSON.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.real_servers import PROGRAMS, VLLM_SERVER, python_of

PROMPTS = Path(__file__).parents[1] / "examples" / "prompts"
FILES = ("arithmetic", "capitals", "orders", "reviews")
ROWS = 300
MOST_TOKENS = 64
PATIENCE = 600.0
Messages = list[dict[str, str]]


def _llama_server(folder: Path) -> dict[str, Any]:
    command = shlex.join([*python_of("llama_cpp"), str(PROGRAMS / "llama.py"), "{model}", "{port}"])
    options = {"preset": "llama-server", "command": command}
    return {"model": str(write_gguf(folder / "f32.gguf")), "backend": "server", "backend_options": options}


def _vllm_server(_folder: Path) -> dict[str, Any]:
    options = {"preset": "vllm", "command": f"{shlex.join(python_of('vllm'))} {VLLM_SERVER}"}
    return {"model": str(resolve(EMBEDDED_MODEL)), "backend": "server", "backend_options": options}


def _llama_cpp(folder: Path) -> dict[str, Any]:
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn_type": "disabled"}
    return {"model": str(write_gguf(folder / "f32.gguf")), "backend": "llama_cpp", "backend_options": exact}


ENGINES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "torch": lambda _folder: {"dtype": "float32"},
    "vllm": lambda _folder: {"backend": "vllm", "dtype": "float32", "backend_options": {"enforce_eager": True}},
    "ctranslate2": lambda _folder: {"backend": "ctranslate2", "dtype": "float32"},
    "openvino": lambda _folder: {"backend": "openvino", "dtype": "float32", "kv_cache_gib": 1.0},
    "llama_cpp": _llama_cpp,
    "vllm-server": _vllm_server,
    "llama-server": _llama_server,
}
"""Settings of `ModelConfig`, by the engine's name, or a preset's with `-server`."""


@dataclass(frozen=True)
class Expected:
    """An answer of `model.generate`."""

    token_ids: list[int]
    gaps: list[float]
    """How far the logit of each token is above the next likeliest one's."""


def main() -> None:
    """Ask `model.generate` and the engines that `--engines` names."""
    parser = command_line("agreement", __doc__)
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas between them")
    parser.add_argument("--results", type=Path, help="a file to keep the figures in, beside other engines' figures")
    arguments = parser.parse_args()
    names = arguments.engines.split(",")
    asked = prompts()
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve(EMBEDDED_MODEL))
    expected = [*generated(tokenizer, asked)]
    differing = {}
    for name in names:
        found = answers(ENGINES[name], asked)
        gaps = [gap_at_difference(tokenizer, *pair) for pair in zip(expected, found, strict=True)]
        differing[name] = sorted(gap for gap in gaps if gap is not None)
        print(
            f"{name}: {len(differing[name])} of {len(asked)} differ; the likeliest led by {differing[name]}", flush=True
        )
    kept = json.loads(arguments.results.read_text())["differing"] if _exists(arguments.results) else {}
    compared = {"asked": len(asked), "tokens": sum(len(each.token_ids) for each in expected)}
    conclude(compared | {"differing": kept | differing}, arguments.results)


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


def prompts() -> list[Messages]:
    """Conversations of one message."""
    lines = [line for name in FILES for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return [row.get("messages") or [{"role": "user", "content": row["prompt"]}] for row in rows][:ROWS]


def generated(tokenizer: Any, asked: list[Messages]) -> list[Expected]:
    """One after another: no batch, no padding."""
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve(EMBEDDED_MODEL), dtype=torch.float32).eval()
    found = []
    for messages in asked:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        options: dict[str, Any] = {"output_logits": True, "return_dict_in_generate": True, "do_sample": False}
        output = model.generate(ids, max_new_tokens=MOST_TOKENS, **options)
        best = torch.cat(output.logits).topk(2).values
        found.append(Expected(output.sequences[0, ids.shape[1] :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return found


def answers(settings: Callable[[Path], dict[str, Any]], asked: list[Messages]) -> list[str]:
    """An engine's, all asked at once."""
    with tempfile.TemporaryDirectory() as folder:
        config = ModelConfig.parse({"model": EMBEDDED_MODEL, **settings(Path(folder))})
        runtime = Path(folder) / "run"
        with EngineClient.open(config, manager=ManagerConfig(linger=0.0), runtime=runtime) as client:
            params = SamplingParams(max_tokens=MOST_TOKENS)
            futures = [client.submit(each, params, request_id=str(number)) for number, each in enumerate(asked)]
            return [future.result(PATIENCE).text for future in futures]


def gap_at_difference(tokenizer: Any, expected: Expected, found: str) -> float | None:
    """The gap at the first token that is not in the text; None if the texts are equal."""

    def text(count: int) -> str:
        return str(tokenizer.decode(expected.token_ids[:count], skip_special_tokens=True)).rstrip("\ufffd")

    most = len(expected.token_ids)
    if text(most) == found:
        return None
    differs = next((count for count in range(1, most) if not found.startswith(text(count))), most)
    return expected.gaps[differs - 1]


if __name__ == "__main__":
    main()
