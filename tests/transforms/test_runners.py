import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.portability.prism_runner import PrismRunner

from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.runners import (
    DATAFLOW,
    FLINK,
    LOCAL,
    PORTABLE,
    PRISM,
    Runner,
    known,
    lift_job_timeout,
    runner_of,
    running,
    runs_here,
)


@pytest.mark.parametrize(
    ("flags", "runner"),
    [
        ([], LOCAL),
        (["--runner=direct"], LOCAL),
        (["--runner=SwitchingDirectRunner"], LOCAL),
        (["--runner=a.b.FlinkRunner"], FLINK),
        (["--runner=Flink"], FLINK),
        (["--runner=millrace.pipelines.runners.prism.OwnPrism"], PRISM),
        (["--runner=prism"], PRISM),
        (["--runner=dataflow"], DATAFLOW),
        (["--runner=a.b.Another"], Runner(name="a.b.Another")),
    ],
)
def test_a_runner_is_known_by_its_name_with_its_module_or_without(flags: list[str], runner: Runner) -> None:
    assert runner_of(PipelineOptions(flags)) == runner


def test_beams_other_runners_are_known_by_name_alone() -> None:
    assert known("SparkRunner") == Runner(name="SparkRunner")
    assert known("FooRunner") is None


def test_a_class_made_of_a_runners_class_has_its_facts() -> None:
    class Mine(PrismRunner):
        pass

    mine = running(Mine())
    assert (mine.name, mine.tries_again) == ("Mine", True)
    assert mine.is_on_this_machine
    assert mine.spins_without_outputs


@pytest.mark.parametrize(
    ("flags", "is_here"),
    [
        ([], True),
        (["--runner=PrismRunner"], True),
        (["--runner=PrismRunner", "--environment_type=EXTERNAL"], False),
        (["--runner=FlinkRunner"], False),
        (["--runner=FlinkRunner", "--environment_type=LOOPBACK"], True),
        (["--runner=DataflowRunner"], False),
    ],
)
def test_an_engine_runs_here_where_workers_do(flags: list[str], is_here: bool) -> None:
    options = PipelineOptions(flags)
    assert runs_here(options, runner_of(options)) is is_here


@pytest.mark.parametrize("runner", [LOCAL, PRISM])
def test_where_a_job_ends_with_the_first_failure_nothing_waits_longer_for_a_retry(runner: Runner) -> None:
    assert runner.manager_config({}) == ManagerConfig()


@pytest.mark.parametrize("runner", [LOCAL, PRISM])
def test_the_requests_of_a_job_wait_for_the_one_that_resumes_it(runner: Runner) -> None:
    assert runner.manager_config({}, is_resumable=True) == ManagerConfig(orphan_grace=120.0)
    assert runner.manager_config({"orphan_grace": 3.0}, is_resumable=True).orphan_grace == 3.0


@pytest.mark.parametrize("runner", [FLINK, PORTABLE, DATAFLOW, Runner(name="Another")])
def test_elsewhere_the_model_and_its_answers_stay_until_a_worker_has_been_replaced(runner: Runner) -> None:
    patient = runner.manager_config({})
    assert patient.linger > ManagerConfig().linger
    assert patient.orphan_grace > ManagerConfig().orphan_grace


def test_what_was_asked_for_holds_on_every_runner() -> None:
    assert FLINK.manager_config({"linger": 1.0}).linger == 1.0
    with pytest.raises(ConfigError, match="linger"):
        FLINK.manager_config({"linger": -1.0})


@pytest.mark.parametrize(
    ("flags", "runner", "is_lifted"),
    [
        ([], LOCAL, True),
        ([], PRISM, True),
        ([], PORTABLE, False),
        (["--job_server_timeout=8"], PRISM, False),
    ],
)
def test_the_job_timeout_of_prism_is_lifted_where_nobody_set_it(
    flags: list[str], runner: Runner, is_lifted: bool
) -> None:
    options = PipelineOptions(flags)
    before = options.view_as(PortableOptions).job_server_timeout
    lift_job_timeout(options, runner)
    assert (options.view_as(PortableOptions).job_server_timeout > before) == is_lifted
