"""Flags that are not ours go on to Beam, which drops with a warning what it does not know; here that is an error."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator

from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from model_manager.wire.errors import ConfigError
from pipelines.flag_parser import FlagParser

_PORTABLE = ("--job_endpoint",)
"""With a job server there may be options that only it knows."""


class _BeamFlagParser(_BeamArgumentParser, FlagParser):
    pass


def beam_options(flags: list[str], own_flags: Collection[str]) -> PipelineOptions:
    """Beam's options from the flags that are left; ConfigError for one that Beam does not know either."""
    parser = _BeamFlagParser(allow_abbrev=False, conflict_handler="resolve", add_help=False)
    for options in _all_options(PipelineOptions):
        options._add_argparse_args(parser)
    known = [flag for action in parser._actions for flag in action.option_strings]
    _, unknown = parser.parse_known_args(flags)
    for flag in unknown:
        _check(flag, [*own_flags, *known], any(name.split("=")[0] in _PORTABLE for name in flags))
    return PipelineOptions(flags)


def _all_options(options: type[PipelineOptions]) -> Iterator[type[PipelineOptions]]:
    for child in options.__subclasses__():
        if "_add_argparse_args" in child.__dict__ and child.__module__.startswith("apache_beam."):
            yield child
        yield from _all_options(child)


def _check(flag: str, known: list[str], has_job_server: bool) -> None:
    name = flag.split("=")[0]
    if not name.startswith("--"):
        if has_job_server:
            return
        raise ConfigError(f"unexpected argument {flag!r}: flags begin with --")
    near = difflib.get_close_matches(name.replace("-", "_").replace("__", "--", 1), known, n=1, cutoff=0.7)
    if near or not has_job_server:
        hint = f"did you mean {near[0]}?" if near else "--help lists all"
        raise ConfigError(f"unknown flag {name}: {hint}")
