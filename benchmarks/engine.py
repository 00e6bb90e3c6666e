"""Tokens a second of the engine alone, against other engines on the same weights and processor.

python -m benchmarks.engine --shape opt-125m --workload skewed --dtype bfloat16
python -m benchmarks.engine --device cuda    # nano-vllm's workload, and the share of what memory allows
python -m benchmarks.engine --rehearse       # the same on small models: whether it runs
"""

from __future__ import annotations

import argparse
import itertools

from benchmarks import bandwidth
from benchmarks.command_line import command_line
from benchmarks.contenders import ENGINES, GEMM_BOUND
from benchmarks.contest import parse_arguments, report, run
from benchmarks.results import Row
from benchmarks.workload import GPU_SHAPES, NANO_VLLM, NANO_VLLM_SMALL, SMALL_SHAPES, VOCAB, make


def main() -> None:
    """Run the engines that `--engines` names; the last line is JSON."""
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: what others are by default, too")
    place.add_argument(
        "--rehearse", action="store_true", help="run what --device cuda runs, on small models, on a CPU too"
    )
    given = place.parse_known_args()[0]
    parser = command_line("engine", __doc__, [place])
    if given.device == "cuda" or given.rehearse:
        _contest_for_gpus(parser, rehearsal=given.rehearse)
    else:
        default = f"millrace,{GEMM_BOUND},openvino-genai,ctranslate2,transformers-cb-sdpa,static-8"
        on_cpus = tuple(name for name in ENGINES if "-cuda" not in name)
        report(run(parse_arguments(parser, on_cpus, default)), baseline="static-8")


def _contest_for_gpus(parser: argparse.ArgumentParser, *, rehearsal: bool) -> None:
    engines = "millrace-cuda,transformers-cb-cuda"
    shapes, workload = (SMALL_SHAPES, NANO_VLLM_SMALL) if rehearsal else (GPU_SHAPES, NANO_VLLM)
    arguments = parse_arguments(parser, tuple(ENGINES), engines, ",".join(shapes), workload)
    device = _device_name(rehearsal)
    bandwidth.bytes_per_second(device)  # a device that is not known is to be told before the contest, not after
    rows, failures = _one_after_the_other(arguments)
    print(*shares(rows, device), sep="\n")
    report(rows, baseline="transformers-cb-cuda")
    if failures:
        raise SystemExit("; ".join(failures))


def _one_after_the_other(arguments: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """The rows, and which engines failed at what: on a GPU each engine takes the memory that it finds, so it is alone
    there, and one that fails takes no other's figures with it.
    """
    rows, failures = [], []
    for shape, name in itertools.product(arguments.shape, arguments.engines):
        alone = argparse.Namespace(**vars(arguments) | {"shape": [shape], "engines": [name]})
        try:
            rows += run(alone)
        except SystemExit as failure:
            failures.append(f"{name}: {failure}")
    return rows, failures


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


def _device_name(rehearsal: bool) -> str:
    """The GPU's name; in a rehearsal without one, the name of the GPU that it stands in for."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    if not rehearsal:
        raise SystemExit("--device cuda: torch finds no usable CUDA device here; --rehearse takes a CPU")
    return "H200"


if __name__ == "__main__":
    main()
