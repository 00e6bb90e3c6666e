"""Tokens a second of the engine alone, against other engines on the same weights and processor.

python -m benchmarks.engine --shape opt-125m --workload skewed --dtype bfloat16
"""

from __future__ import annotations

from benchmarks.contenders import ENGINES, GEMM_BOUND
from benchmarks.contest import parse_arguments, report, run


def main() -> None:
    """Run the engines that `--engines` names; the last line is JSON."""
    default = f"millrace,{GEMM_BOUND},openvino-genai,ctranslate2,transformers-cb-sdpa,static-8"
    report(run(parse_arguments(__doc__ or "", tuple(ENGINES), default)), baseline="static-8")


if __name__ == "__main__":
    main()
