import pytest

from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.requests.retries import manager_config, tries_again


@pytest.mark.parametrize("runner", [None, "DirectRunner", "a.b.FnApiRunner", "PrismRunner"])
def test_where_a_job_ends_with_the_first_failure_nothing_waits_longer_for_a_retry(runner: str | None) -> None:
    assert not tries_again(runner)
    assert manager_config(runner, {}) == ManagerConfig()


@pytest.mark.parametrize("runner", ["FlinkRunner", "PortableRunner", "apache_beam.runners.DataflowRunner"])
def test_elsewhere_the_model_and_its_answers_stay_until_a_worker_has_been_replaced(runner: str) -> None:
    assert tries_again(runner)
    patient = manager_config(runner, {})
    assert patient.linger > ManagerConfig().linger
    assert patient.orphan_grace > ManagerConfig().orphan_grace


def test_what_was_asked_for_holds_on_every_runner() -> None:
    assert manager_config("FlinkRunner", {"linger": 1.0}).linger == 1.0
    with pytest.raises(ConfigError, match="linger"):
        manager_config("FlinkRunner", {"linger": -1.0})
