"""Tokens a second of a Beam pipeline with millrace, against the engine alone and against Beam's RunInference.

python -m benchmarks.pipeline --shape opt-125m --workload skewed --dtype bfloat16
"""

from __future__ import annotations

from benchmarks.command_line import command_line
from benchmarks.contenders import CONTENDERS
from benchmarks.contest import parse_arguments, report, run


def main() -> None:
    """Run the sides that `--engines` names; the last line is JSON."""
    default = "millrace-pipeline,millrace,beam-runinference-8,beam-runinference"
    arguments = parse_arguments(command_line("pipeline", __doc__), tuple(CONTENDERS), default)
    report(run(arguments), baseline="beam-runinference-8")


if __name__ == "__main__":
    main()
