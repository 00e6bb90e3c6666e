import apache_beam as beam

from millrace.model_manager.wire.shared_settings import UnmetSetting
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.models.summary_counters import counted_unmet
from tests.transforms.running import counters, pipeline

UNMET = (
    UnmetSetting("draft_model", "gs://b/small:1", None),
    UnmetSetting("kv_cache_gib", 1.5, 2.0),
    UnmetSetting("max_num_seqs", 16, 8),
    UnmetSetting("prefix_caching", False, True),
)


class SharingClient(StandInClient):
    unmet = UNMET


def test_settings_that_do_not_hold_are_in_the_jobs_counters_once_however_many_bundles_there_are() -> None:
    with pipeline() as p:
        _ = p | beam.Create(["a", "b"]) | beam.Reshuffle() | Generate("stand-in", open_client=SharingClient)
    assert counted_unmet(counters(p.result)) == [*UNMET]


def test_a_job_that_gets_what_it_asked_for_counts_none() -> None:
    with pipeline() as p:
        _ = p | beam.Create(["a"]) | Generate("stand-in", open_client=StandInClient)
    assert counted_unmet(counters(p.result)) == []
