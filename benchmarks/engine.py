"""Tokens a second of the engine alone, against transformers' ways to generate, on the same weights and processor.

python -m benchmarks.engine --shape opt-125m --workload skewed --dtype bfloat16
"""

from __future__ import annotations

from benchmarks.contest import parse_arguments, report, run
from benchmarks.sides import ENGINE_SIDES


def main() -> None:
    """Run the engines that `--engines` names; the last line is JSON."""
    default = "millrace,static-8,transformers-cb-sdpa,transformers-cb-eager"
    report(run(parse_arguments(__doc__ or "", tuple(ENGINE_SIDES), default)), baseline="static-8")


if __name__ == "__main__":
    main()
