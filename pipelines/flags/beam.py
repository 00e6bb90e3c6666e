"""Other flags go on to Beam. Beam drops unknown flags with a warning; here an unknown flag is an error."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.runners import PipelineRunner

from millrace.model_manager.wire.config import SETTINGS_ELSEWHERE
from millrace.model_manager.wire.conversion import did_you_mean, nearest
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import PARAMETERS_ELSEWHERE
from millrace.transforms.runners import TRIED, FlinkOptions, known, runner_of

from .parser import FlagParser

_PORTABLE = "--job_endpoint"
"""With a job server, which Beam starts for Flink itself, there may be options that only it knows."""
_REGION = "CLOUDSDK_COMPUTE_REGION"
_TAKES = f"{', '.join(runner.name for runner in TRIED)}, or the full name of another runner's class"


class _BeamFlagParser(_BeamArgumentParser, FlagParser):
    pass


def check_runner(options: PipelineOptions) -> None:
    """Raises ConfigError for a `--runner` that there is not."""
    given = options.view_as(StandardOptions).runner or ""
    if "." in given:
        _check_class(given)
    elif given and known(given) is None:
        takes = f"takes {_TAKES}"
        raise ConfigError(f"--runner {given}: there is no such runner{did_you_mean(_nearest(given), takes)}")


def _check_class(path: str) -> None:
    module, _, name = path.rpartition(".")
    if not (module and name):
        raise ConfigError(f"--runner {path}: names no class: takes {_TAKES}")
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"--runner {path}: {module} cannot be imported ({error}): takes {_TAKES}, in a module that this"
            " Python has (PYTHONPATH)"
        ) from None
    if not hasattr(found, name):
        hint = did_you_mean(nearest(name, vars(found)), f"takes {_TAKES}")
        raise ConfigError(f"--runner {path}: {module} has no {name}{hint}")
    runner = getattr(found, name)
    if not callable(runner) or (isinstance(runner, type) and not issubclass(runner, PipelineRunner)):
        raise ConfigError(f"--runner {path}: names no class of a runner: takes {_TAKES}")


def _nearest(given: str) -> str | None:
    """The runner with a similar name. The common ending of all names does not count."""
    names = {name.lower().removesuffix("runner"): name for name in StandardOptions.KNOWN_RUNNER_NAMES}
    near = nearest(given.lower().removesuffix("runner"), names)
    return names[near] if near else None


def beam_options(flags: list[str], own_flags: Mapping[str, str]) -> PipelineOptions:
    """Beam's options from the flags that are left; ConfigError for a flag or runner that Beam does not know either.

    `own_flags`: the command's own, each with its help.
    """
    parser = _BeamFlagParser(allow_abbrev=False, conflict_handler="resolve", add_help=False)
    has_job_server = any(map(_names_job_server, flags))
    for options in _all_options(PipelineOptions):
        if has_job_server or options is not FlinkOptions:
            options._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(flags)
    for flag in unknown:
        _check_elsewhere(flag, own_flags)
        _check(flag, [*own_flags, *parser.flags], has_job_server)
    options = PipelineOptions(flags)
    check_runner(options)
    return options


def complete(options: PipelineOptions, *, is_stream: bool) -> None:
    """Set what follows from the command's own flags and from the environment, before the job's settings are made.

    Nothing changes a job's options later: `beam.Pipeline` and the submission to Dataflow complete copies of them.
    """
    if is_stream:
        options.view_as(StandardOptions).streaming = True
    if runner_of(options).is_on_google_cloud:
        cloud = options.view_as(GoogleCloudOptions)
        cloud.region = cloud.region or os.environ.get(_REGION)


def _names_job_server(flag: str) -> bool:
    runner = known(flag.split("=")[-1])
    return flag.split("=")[0] == _PORTABLE or (runner is not None and runner.is_flink)


def _all_options(options: type[PipelineOptions]) -> Iterator[type[PipelineOptions]]:
    for child in options.__subclasses__():
        of_beam = child.__module__.startswith("apache_beam.") or child is FlinkOptions
        if of_beam and "_add_argparse_args" in child.__dict__:
            yield child
        yield from _all_options(child)


def _check_elsewhere(flag: str, own_flags: Mapping[str, str]) -> None:
    """Raises ConfigError for another program's name of one of the command's flags, and says what that flag is."""
    given = flag.split("=")[0]
    name = given.removeprefix("--").replace("-", "_")
    meant = f"--{(SETTINGS_ELSEWHERE | PARAMETERS_ELSEWHERE).get(name)}"
    if given.startswith("--") and meant in own_flags:
        raise ConfigError(f"unknown flag {given}{did_you_mean(meant)} {own_flags[meant]}")


def _check(flag: str, known: list[str], has_job_server: bool) -> None:
    name = flag.split("=")[0]
    if not name.startswith("--"):
        if has_job_server:
            return
        raise ConfigError(f"unexpected argument {flag!r}: flags begin with --; files are named by --input")
    near = nearest(name, known)
    if near or not has_job_server:
        raise ConfigError(f"unknown flag {name}{did_you_mean(near, '--help lists all')}")
