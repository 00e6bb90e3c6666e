"""Tokens a second of a Beam pipeline over each engine, against the same engine by itself, as its own users call it.

    python -m benchmarks.engines --engines vllm,openvino --shape opt-125m --workload skewed-x4 --rounds 3
    python -m benchmarks.engines --against beam --engines vllm    # against Beam's own handler for vLLM
    python -m benchmarks.engines --against defaults --engines openvino    # its own defaults against our settings of it

Each engine must be installed (`millrace engines install NAME`). A pipeline and its engine take turns, in processes of
their own; the engines come one after the other, so only the two of one line compare. Ends with 1 if one was given up.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.command_line import command_line
from benchmarks.contest import parse_arguments, run
from benchmarks.duels import BEAM, DEFAULTS, DUELS, shares
from benchmarks.results import Row, as_json, keep_duel
from benchmarks.workload import LONG


def main() -> None:
    """Run the engines that `--engines` names; the last line is JSON."""
    against = argparse.ArgumentParser(add_help=False)
    against.add_argument(
        "--against",
        choices=("itself", "beam", "defaults"),
        default="itself",
        help="who takes turns with Generate; defaults: the engine by itself with our settings, and with its own",
    )
    parser = command_line("engines", __doc__, [against])
    arguments = parse_arguments(parser, tuple(DUELS), "all", workload=",".join(LONG), dtype="bfloat16,int8")
    duels = {"itself": DUELS, "beam": BEAM, "defaults": DEFAULTS}[arguments.against]
    rows, failures = _one_after_the_other(arguments, {name: duels[name] for name in arguments.engines if name in duels})
    print(*shares(rows), sep="\n")
    print(json.dumps({"rows": as_json(rows)}))
    if failures:
        raise SystemExit("; ".join(failures))


def _one_after_the_other(
    arguments: argparse.Namespace, duels: dict[str, tuple[str, ...]]
) -> tuple[list[Row], list[str]]:
    """The rows, and which engines failed at what."""
    rows, failures = [], []
    for name, sides in duels.items():
        try:
            rows += run(argparse.Namespace(**vars(arguments) | {"engines": sides}), keep_duel)
        except SystemExit as failure:
            failures.append(f"{name}: {failure}")
    return rows, failures


if __name__ == "__main__":
    main()
