"""One table of Beam's runners: code that depends on a runner asks for a fact in it. And the options of Flink's."""

from __future__ import annotations

import argparse
import logging
from typing import Any

import msgspec
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from millrace.model_manager.wire.config import ManagerConfig

_log = logging.getLogger(__name__)
_RESUMABLE = {"orphan_grace": 120.0}
"""Seconds; somebody has to notice that the job is gone, and the next one takes its time to start."""
_PATIENT = {"linger": 120.0, **_RESUMABLE}
"""Seconds; a runner that has to notice first that a machine is gone takes its time."""

_JOB_SERVER_TIMEOUT = 300
"""Seconds: Beam's default of `--job_server_timeout`."""
_LONGEST_JOB = 365 * 24 * 3600
"""Seconds."""


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """One of Beam's runners."""

    name: str
    """As `--runner` takes it."""
    classes: tuple[str, ...] = ()
    """Other classes of the same runner."""
    is_local: bool = False
    """Jobs run in this process or in worker processes that it starts."""
    is_on_this_machine: bool = False
    """The runner is this process or one that it starts, and jobs end with it."""
    is_on_google_cloud: bool = False
    """Jobs are submitted to Google Cloud."""
    is_flink: bool = False
    """The job server is Flink's. Beam starts one from a jar, unless `--job_endpoint` names one."""
    needs_job_endpoint: bool = False
    """Nobody but `--job_endpoint` says where the job server is."""
    has_pubsub: bool = False
    """The runner itself reads and writes Pub/Sub."""
    spins_without_outputs: bool = False
    """A stage without outputs takes a core while a bundle runs."""
    takes_streams: bool = True
    tries_again: bool = True
    """A bundle that failed is run again; where it is not, the job ends with the first failure."""
    fires_timers: bool = False
    """Timers of real time are known to fire."""
    keeps_state: bool = True
    """State is still there after the runner was killed."""
    counts_all: bool = True
    """No metric is lost; Prism loses some where bundles of a stage end together."""

    def manager_config(self, given: dict[str, Any], *, is_resumable: bool = False) -> ManagerConfig:
        """What is given, and else what suits the runner; raises ConfigError for impossible values.

        Where a bundle is run again, the model and its answers wait for that: its requests are not paid for twice.
        `is_resumable`: requests wait for another job that goes on with this one, too.
        """
        suits = _PATIENT if self.tries_again else _RESUMABLE if is_resumable else {}
        return ManagerConfig.parse({**suits, **given})


LOCAL = Runner(
    name="DirectRunner",
    classes=("FnApiRunner", "SwitchingDirectRunner"),
    is_local=True,
    is_on_this_machine=True,
    takes_streams=False,
    tries_again=False,
)
PRISM = Runner(
    name="PrismRunner",
    classes=("OwnPrism",),
    is_on_this_machine=True,
    spins_without_outputs=True,
    tries_again=False,
    fires_timers=True,
    keeps_state=False,
    counts_all=False,
)
FLINK = Runner(name="FlinkRunner", is_flink=True, fires_timers=True)
PORTABLE = Runner(name="PortableRunner", needs_job_endpoint=True, fires_timers=True)
DATAFLOW = Runner(
    name="DataflowRunner",
    classes=("TestDataflowRunner",),
    is_on_google_cloud=True,
    has_pubsub=True,
    fires_timers=True,
)
TRIED = (LOCAL, PRISM, FLINK, PORTABLE, DATAFLOW)
"""The runners on which jobs are tested."""
_OTHERS = (
    Runner(name="BundleBasedDirectRunner", tries_again=False),
    Runner(name="InteractiveRunner", tries_again=False),
)
_BY_NAME = {name.lower(): Runner(name=name) for name in StandardOptions.KNOWN_RUNNER_NAMES} | {
    name.lower(): runner for runner in (*TRIED, *_OTHERS) for name in (runner.name, *runner.classes)
}


def known(name: str) -> Runner | None:
    """The runner of a name as Beam reads it: `Flink`, `flinkrunner`, or a class with its module; None if unknown."""
    short = name.rsplit(".", 1)[-1].lower()
    return _BY_NAME.get(short) or _BY_NAME.get(f"{short}runner")


def runner_of(options: PipelineOptions) -> Runner:
    """The runner that `--runner` names; by default the local one."""
    name = options.view_as(StandardOptions).runner or LOCAL.name
    return known(name) or Runner(name=name)


def running(runner: Any) -> Runner:
    """The runner that a pipeline has. Another's subclass is as that one, but may run failed bundles again."""
    name, *above = (each.__name__ for each in type(runner).__mro__)
    nearest = next(filter(None, map(known, above)), Runner(name=name))
    return known(name) or msgspec.structs.replace(nearest, name=name, tries_again=True)


def runs_here(options: PipelineOptions, runner: Runner) -> bool:
    """Whether the engine is known to run on this machine, and not where workers of another environment are."""
    environment = options.view_as(PortableOptions).environment_type
    return environment == "LOOPBACK" or (environment is None and runner.is_on_this_machine)


# ── Prism's long jobs ──────────────────────────────────────────────────────────────────────────────────────────────


def lift_job_timeout(options: PipelineOptions, runner: Runner) -> None:
    """Let a job on Prism run for longer than `--job_server_timeout`, where nobody has set that option.

    Beam 2.77 ends the stream of a job's messages after that many seconds, 300 by default, and the job with it. Beam's
    local runner starts Prism where it can.
    """
    portable = options.view_as(PortableOptions)
    if runner.is_on_this_machine and portable.job_server_timeout == _JOB_SERVER_TIMEOUT:
        portable.job_server_timeout = _LONGEST_JOB


# ── Flink's checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────


class FlinkOptions(PipelineOptions):
    """Options of Flink's job server that Beam's Python does not know; None is the job server's own default.

    Beam finds options as the subclasses of PipelineOptions that are defined, so this one is there once it is imported.
    """

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument(
            "--finish_bundle_before_checkpointing",
            nargs="?",
            const=True,
            type=_boolean,
            help="On Flink: whether bundles end before a checkpoint begins; with false rows are lost. Default: true.",
        )
        for name in ("checkpointing_interval", "checkpoint_timeout_millis", "shutdown_sources_after_idle_ms"):
            parser.add_argument(f"--{name}", type=int, help="On Flink: milliseconds.")
        parser.add_argument("--checkpointing_mode", help="On Flink: EXACTLY_ONCE (its default) or AT_LEAST_ONCE.")
        parser.add_argument("--max_bundle_size", type=int, help="On Flink: elements of a bundle.")
        parser.add_argument("--max_bundle_time_mills", type=int, help="On Flink: milliseconds of a bundle.")


def has_checkpoints(options: PipelineOptions) -> bool:
    """Whether Flink is told to make checkpoints. What the cluster's own configuration says is not known here."""
    interval = options.view_as(FlinkOptions).checkpointing_interval
    return interval is not None and interval > 0  # -1 is Flink's word for none


def finish_bundles_before_checkpoints(options: PipelineOptions) -> None:
    """Let bundles end before a checkpoint begins, where nobody has set that option; other runners ignore it.

    Without it Beam's runner for Flink ends an open bundle while it takes a checkpoint, holds the bundle's output back,
    and lets the watermark go on before it: rows come late where they are grouped, and are dropped, or wait for the next
    element. Seen with Beam 2.62 (docs/tutorials/flink.md); 2.70 has the same source.
    """
    flink = options.view_as(FlinkOptions)
    if flink.finish_bundle_before_checkpointing is None:
        flink.finish_bundle_before_checkpointing = True
    if has_checkpoints(options) and not flink.finish_bundle_before_checkpointing:
        _log.warning("--finish_bundle_before_checkpointing=false: Beam's runner for Flink loses rows at checkpoints")


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"takes true or false, not {value}")
    return value.lower() == "true"
