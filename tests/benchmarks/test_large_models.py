"""The benchmark for GPUs, as far as a CPU can tell: its workload, its checkpoints, and the bound it compares with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import gpu_step, large_checkpoints
from benchmarks.bandwidth import SIZES, bound, bytes_per_second
from benchmarks.engine import main, shares
from benchmarks.results import Match, Row
from benchmarks.workload import make

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 9, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}  # fmt: skip


def test_the_workload_is_nano_vllms() -> None:
    items = make("nano-vllm", 151936)
    assert len(items) == 256
    assert sum(item.num_output for item in items) == 133_966, "as its README says"


def test_on_an_h200_memory_allows_what_is_known() -> None:
    items = make("nano-vllm", 151936)
    assert bound(items, SIZES["qwen3-0.6b"], bytes_per_second("NVIDIA H200")) == pytest.approx(42_568, rel=1e-3)


def test_each_engines_share_of_the_bound_is_said() -> None:
    match = Match("qwen3-0.6b", "nano-vllm", "bfloat16")
    row = Row(match, "millrace-cuda", tokens_per_s=30_000.0, rounds=[], peak_rss_mb=0.0)
    (line,) = shares([row, replace(row, match=Match("opt-125m", "skewed", "bfloat16"))], "NVIDIA H200")
    assert line.startswith("qwen3-0.6b nano-vllm bfloat16 millrace-cuda: 70.5% of the 42568 tokens/s")


def test_a_device_of_unknown_bandwidth_is_named() -> None:
    assert bytes_per_second("NVIDIA H100 80GB HBM3") == 3.35e12
    with pytest.raises(KeyError, match="NVIDIA Imaginary 9"):
        bytes_per_second("NVIDIA Imaginary 9")


@pytest.mark.parametrize("shape", large_checkpoints.CONFIGS)
def test_a_checkpoint_written_shard_by_shard_is_whole(shape: str, tmp_path: Path) -> None:
    fields = large_checkpoints.CONFIGS[shape] | SMALL
    large_checkpoints.write(tmp_path, fields)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    auto: Any = AutoModelForCausalLM
    model, report = auto.from_pretrained(tmp_path, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.get_input_embeddings().weight.shape == (99, 32)


def test_an_engine_that_fails_takes_no_others_figures_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: Any) -> list[Row]:
        (name,), (shape,) = arguments.engines, arguments.shape
        if name == "transformers-cb-cuda":
            raise SystemExit("out of memory")
        return [Row(Match(shape, "nano-vllm-small", "bfloat16"), name, 10.0, [10.0], None)]

    monkeypatch.setattr("benchmarks.engine.run", run)
    monkeypatch.setattr(sys, "argv", ["engine", "--rehearse"])
    with pytest.raises(SystemExit, match="transformers-cb-cuda: out of memory"):
        main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["match"]["shape"] for row in rows] == ["qwen3-small", "llama-small"]


def test_that_there_is_no_gpu_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("benchmarks.engine.run", lambda _: pytest.fail("it ran"))
    monkeypatch.setattr(sys, "argv", ["engine", "--device", "cuda"])
    with pytest.raises(SystemExit, match="no usable CUDA device"):
        main()


@pytest.mark.slow
def test_a_step_is_looked_at_kernel_by_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_step", "--rehearse", "--checkpoints", str(tmp_path)])
    gpu_step.main()
    steps = json.loads(capsys.readouterr().out.splitlines()[-1])["steps"]
    assert [step["name"] for step in steps] == ["8 sequences decode", "1 sequences decode", "prompts begin"]
    assert all(step["device_ms"] > 0 and step["launch_ms"] > 0 and step["kernels"] for step in steps)


@pytest.mark.slow
def test_the_benchmark_for_gpus_runs_as_far_as_a_cpu_can_tell(tmp_path: Path) -> None:
    """All that it runs on a GPU but the GPU's own: both engines in their processes, shares, ratio, the line of JSON."""
    flags = ["--rehearse", "--rounds", "1", "--shape", "qwen3-small", "--checkpoints", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.engine", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["engine"] for row in rows] == ["millrace-cuda", "transformers-cb-cuda"]
    assert done.stdout.count("that the memory of H200 allows") == 2
