"""`millrace yaml pipeline.yaml`: a pipeline in Apache Beam's YAML, in which Generate, Score, Embed, Extract and
Classify are known.

The same file runs with `python -m apache_beam.yaml.main` if it includes yaml_providers.yaml itself.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import jinja2
import yaml  # type: ignore[import-untyped]
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import RunnerResult
from apache_beam.runners.portability.portable_runner import PipelineResult as PortableResult
from apache_beam.runners.runner import PipelineState
from apache_beam.yaml import yaml_provider, yaml_transform

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.file_systems import match
from millrace.transforms.runners import runner_of

from ..edge import at_the_edge
from ..flags.beam import beam_options, check_runner
from ..flags.from_settings import json_object
from ..flags.parser import FlagParser
from ..job.logs import logs_at, tell
from ..job.summary import Outcome, count_lines, outcome_of, places
from ..pages.texts import span
from ..runners.job_server import hint_at_workers, runs_on_flink
from ..runners.named_runner import named_runner

PROVIDERS = Path(__file__).with_name("yaml_providers.yaml")
_CLOCKS = 1.0
"""Seconds by which a file system's clock may be behind."""


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline of a file; returns the exit status."""
    return at_the_edge(lambda: _run(arguments), verbose="--verbose" in arguments)


def _run(arguments: Sequence[str]) -> int:
    parser = FlagParser(
        prog="millrace yaml",
        description="Run a pipeline in Apache Beam's YAML, with Generate, Score, Embed, Extract and Classify.",
        epilog="All other flags are Beam's. Examples are in docs/how-to/yaml-and-java.md of millrace's repository.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", metavar="FILE", help="A pipeline in Beam's YAML: a local path, or a path of another Beam file system."
    )
    parser.add_argument(
        "--jinja_variables",
        type=json_object,
        default={},
        metavar="JSON",
        help="Values of Jinja variables in the file.",
    )
    parser.add_argument("--verbose", action="store_true", help="Log what happens, and show full stack traces.")
    flags, rest = parser.parse_known_args(list(arguments))
    spec = _read(flags.file, flags.jinja_variables)
    options = _options(spec, rest)
    runs_on_flink(options)  # or ends here
    runner = runner_of(options)
    with logs_at("info" if flags.verbose else "warning") as console, named_runner(options) as beams_runner:
        pipeline = beam.Pipeline(runner=beams_runner, options=options)
        build(pipeline, spec, flags.file)
        where = "this machine" if runner.is_local else options.view_as(StandardOptions).runner
        tell(console, f"{flags.file}: runs on {where}")
        began = time.time()
        with hint_at_workers(options):
            result = pipeline.run()
            state = result.wait_until_finish()
    if state in (PipelineState.FAILED, PipelineState.CANCELLED):
        print(f"the job's state: {state}")
        return 1
    outcome = outcome_of(result) if isinstance(result, RunnerResult | PortableResult) else None
    for line in _what_was_done(outcome, spec, began):
        print(line)
    return outcome.status if outcome is not None and runner.counts_all else 0


def build(pipeline: beam.Pipeline, spec: dict[str, Any], path: str) -> None:
    """Apply the transforms of a pipeline's YAML, read from `path`; raises ConfigError for what cannot be."""
    try:
        yaml_transform.expand_pipeline(
            pipeline, spec, providers=yaml_provider.load_providers(str(PROVIDERS)), pipeline_path=path
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: {_innermost(error)}") from error


def _read(path: str, variables: dict[str, Any]) -> dict[str, Any]:
    try:
        with FileSystems.open(path) as file:
            text = yaml_transform.expand_jinja(file.read().decode(), variables, [FileSystems.split(path)[0]])
        spec = yaml.load(text, Loader=yaml_transform.SafeLineLoader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; takes a file of Beam's YAML") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; takes a file of Beam's YAML") from None
    except (OSError, ValueError, yaml.YAMLError, jinja2.TemplateError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(spec, dict) or "pipeline" not in spec:
        raise ConfigError(f"{path}: takes a mapping with `pipeline`, as Beam's YAML has it")
    return spec


def _options(spec: dict[str, Any], flags: list[str]) -> PipelineOptions:
    """The options of the file, and the command line's flags on top."""
    beam_options(flags, {})
    own = yaml_transform.SafeLineLoader.strip_metadata(spec.get("options", {}))
    options = PipelineOptions(flags, pickle_library="cloudpickle", **own)
    check_runner(options)
    return options


def _what_was_done(outcome: Outcome | None, spec: dict[str, Any], began: float) -> Iterator[str]:
    """How long it took, what the model was asked, the files that were written since; as far as it is known here."""
    yield f"done in {span(time.time() - began)}"
    if outcome is not None:
        yield from count_lines(outcome)
    for path in _paths_written(spec):
        found = [*match(glob.escape(path)), *match(f"{glob.escape(path)}-*")]
        files = [str(file.path) for file in found if file.last_updated_in_seconds >= began - _CLOCKS]
        if files:
            yield f"written: {places(files)}"


def _paths_written(node: Any) -> Iterator[str]:
    """The paths of all transforms that write files, wherever in the pipeline they are."""
    if isinstance(node, list):
        for child in node:
            yield from _paths_written(child)
    if isinstance(node, dict):
        config = node.get("config")
        if str(node.get("type")).startswith("WriteTo") and isinstance(config, dict) and "path" in config:
            yield str(config["path"])
        for child in node.values():
            yield from _paths_written(child)


def _innermost(error: BaseException) -> BaseException:
    """Beam wraps what a transform raises in one error for each level around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
