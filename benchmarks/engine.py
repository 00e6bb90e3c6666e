"""Tokens a second of the engine alone, against other engines on the same weights and processor.

python -m benchmarks.engine --shape opt-125m --workload skewed --dtype bfloat16
python -m benchmarks.engine --device cuda    # nano-vllm's workload, and the share of what memory allows
"""

from __future__ import annotations

import argparse

from benchmarks import bandwidth
from benchmarks.command_line import command_line
from benchmarks.contenders import ENGINES, GEMM_BOUND
from benchmarks.contest import parse_arguments, report, run
from benchmarks.results import Row
from benchmarks.workload import GPU_SHAPES, NANO_VLLM, VOCAB, make


def main() -> None:
    """Run the engines that `--engines` names; the last line is JSON."""
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: what others are by default, too")
    on_gpu = place.parse_known_args()[0].device == "cuda"
    parser = command_line("engine", __doc__, [place])
    if on_gpu:
        engines, shape = "millrace-cuda,transformers-cb-cuda", ",".join(GPU_SHAPES)
        arguments = parse_arguments(parser, tuple(ENGINES), engines, shape, NANO_VLLM)
        rows = run(arguments)
        print(*shares(rows, _device_name()), sep="\n")
        report(rows, baseline="transformers-cb-cuda")
    else:
        default = f"millrace,{GEMM_BOUND},openvino-genai,ctranslate2,transformers-cb-sdpa,static-8"
        report(run(parse_arguments(parser, tuple(ENGINES), default)), baseline="static-8")


def shares(rows: list[Row], device: str) -> list[str]:
    """Each engine's part of the bound that benchmarks/bandwidth.py computes for a device of that name, a line each."""
    lines = []
    for row in rows:
        match = row.match
        if match.shape in bandwidth.SIZES:
            items = make(match.workload, VOCAB[match.shape])
            most = bandwidth.bound(items, bandwidth.SIZES[match.shape], bandwidth.bytes_per_second(device))
            share = f"{row.tokens_per_s / most:.1%} of the {most:.0f} tokens/s"
            lines.append(f"{match} {row.engine}: {share} that the memory of {device} allows")
    return lines


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name(0)


if __name__ == "__main__":
    main()
