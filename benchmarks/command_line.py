"""One form of command line for all benchmarks: the module's docstring as it stands, and each flag with its default."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def command_line(
    module: str, description: str | None, parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.ArgumentParser:
    """A parser for `python -m benchmarks.<module>`; flags of `parents` are its own too."""
    prog = f"python -m benchmarks.{module}"
    return argparse.ArgumentParser(prog=prog, description=description, formatter_class=_Help, parents=list(parents))
