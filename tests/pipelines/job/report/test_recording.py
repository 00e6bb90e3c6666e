import threading

import msgspec
import pytest

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EndedModel, EngineStats, EngineTotals, JobStatus, ModelStatus
from millrace.pipelines.job.report.content import engine_facts, latencies, over_time
from millrace.pipelines.job.report.recording import Recorder
from millrace.pipelines.pages.facts import Facts
from millrace.pipelines.pages.table import Digest


def status(stats: EngineStats, *jobs: JobStatus, restarts: int = 0, model: str = "m") -> Status:
    models = [ModelStatus(f"key of {model}", model, "ready", [1], 1, restarts, 0, None, stats)]
    return Status(pid=1, uptime=1.0, models=models, jobs=list(jobs), processes=[])


def recorded(*found: Status | None, every: float = 0.0) -> Recorder:
    """What comes of looks with `every` seconds between them."""
    looks, now = iter(found), 0.0
    recorder = Recorder("j", lambda name: name == "m", lambda: next(looks), lambda: now)
    for _ in found:
        now += every
        recorder.read()
    return recorder


def test_what_an_engine_did_before_the_job_is_not_the_jobs() -> None:
    recorder = recorded(
        status(EngineStats(steps=100, preemptions=7, prompt_tokens=1000, cached_tokens=900), restarts=2),
        status(EngineStats(steps=150, preemptions=8, prompt_tokens=1200, cached_tokens=950), restarts=2),
    )
    told = dict(engine_facts(recorder))
    assert (told["steps"], told["preemptions"], told["restarts"]) == ("50", "1", "0")
    assert told["prompt tokens from the prefix cache"] == "50 of 200 (25 %)"
    assert told["drafted tokens that were right"] == "none drafted"


@pytest.mark.parametrize("before", [[], [None]], ids=["asked at once", "no answer at first"])
def test_what_engines_did_before_their_model_ended_and_the_job_opened_it_again_is_not_the_jobs(
    before: list[None],
) -> None:
    (model,) = status(EngineStats(steps=100), restarts=2).models
    ended = EndedModel(model.key, model.model, 2, EngineTotals(steps=100), {})
    recorder = recorded(
        *before,
        Status(pid=1, uptime=1.0, models=[], jobs=[], processes=[], ended=[ended]),
        status(EngineStats(steps=110), restarts=2),
    )
    told = dict(engine_facts(recorder))
    assert (told["steps"], told["restarts"]) == ("10", "0")


def test_counts_go_on_where_an_engine_is_started_again() -> None:
    recorder = recorded(
        None,
        status(EngineStats(steps=10, drafted_tokens=8, accepted_tokens=4)),
        status(EngineStats(steps=3, drafted_tokens=2, accepted_tokens=2), restarts=1),
    )
    told = dict(engine_facts(recorder))
    assert (told["steps"], told["restarts"]) == ("13", "1")
    assert told["drafted tokens that were right"] == "6 of 10 (60 %)"


@pytest.mark.parametrize("sign", [{"pid": 2}, {"uptime": 0.5}], ids=["another pid", "the same pid in a container"])
def test_counts_and_restarts_go_on_where_another_manager_takes_over(sign: dict[str, float]) -> None:
    """Whether its counts are lower or higher at the first look than the last manager's were."""
    job = JobStatus("j", finished=5, generated_tokens=50)
    other = JobStatus("other", finished=3)
    for steps, restarts in ((3, 1), (30, 4)):
        found = status(EngineStats(steps=steps), JobStatus("j", finished=6, generated_tokens=60), restarts=restarts)
        recorder = recorded(
            status(EngineStats(steps=5), job, other, restarts=1),
            status(EngineStats(steps=20), job, other, restarts=3),
            msgspec.structs.replace(found, **sign),
        )
        told = dict(engine_facts(recorder))
        assert (told["steps"], told["restarts"]) == (f"{15 + steps}", f"{2 + restarts}")
        assert [(point.done, point.tokens) for point in recorder.series.points()][-1] == (11, 110)
        assert not recorder.is_shared


def test_a_manager_of_the_same_pid_that_is_older_than_the_last_one_was_is_another() -> None:
    """For 60 s nobody could look. The second manager has run for 40 s by then, the first one had for 10 s."""
    looks = [(10.0, 5), (70.0, 20), (40.0, 30)]
    first, second, third = (msgspec.structs.replace(status(EngineStats(steps=n)), uptime=up) for up, n in looks)
    assert dict(engine_facts(recorded(first, second, every=60.0)))["steps"] == "15"
    assert dict(engine_facts(recorded(first, third, every=60.0)))["steps"] == "30"
    late = msgspec.structs.replace(second, uptime=69.5)
    assert dict(engine_facts(recorded(first, late, every=60.0)))["steps"] == "15", "clocks differ by a little"


def test_looks_of_several_threads_are_noted_in_the_order_in_which_the_manager_answered() -> None:
    looks = [(1.0, 5), (2.0, 10), (3.0, 20)]
    found = iter([msgspec.structs.replace(status(EngineStats(steps=n)), uptime=up) for up, n in looks])

    def look() -> None:
        recorder.read()

    other = threading.Thread(target=look)

    def read() -> Status:
        answer = next(found)
        if answer.uptime == 2.0:
            other.start()
            other.join(0.2)  # as long as it may look meanwhile, its answer is noted first
        return answer

    recorder = Recorder("j", lambda name: name == "m", read)
    recorder.read()
    recorder.read()
    other.join()
    assert dict(engine_facts(recorder))["steps"] == "15"


def test_what_a_manager_told_before_it_was_replaced_is_not_taken_from_the_next_ones_counts() -> None:
    (model,) = status(EngineStats(steps=100)).models
    ended = EndedModel(model.key, model.model, 2, EngineTotals(steps=100), {})
    recorder = recorded(
        Status(pid=1, uptime=9.0, models=[], jobs=[JobStatus("other", finished=9)], processes=[], ended=[ended]),
        status(EngineStats(steps=7), JobStatus("other", finished=2), restarts=1),
    )
    told = dict(engine_facts(recorder))
    assert (told["steps"], told["restarts"]) == ("7", "1")
    assert recorder.is_shared


def test_another_models_engine_is_left_out_and_another_jobs_requests_are_told() -> None:
    recorder = recorded(
        status(EngineStats(steps=5), JobStatus("other", finished=3)),
        status(EngineStats(steps=9), JobStatus("other", finished=3), model="another"),
    )
    assert not recorder.is_shared
    recorder = recorded(None, status(EngineStats(steps=9), JobStatus("other", finished=1), JobStatus("j", finished=1)))
    assert recorder.is_shared


def test_time_counts_from_when_requests_run() -> None:
    waiting = status(EngineStats())
    running = msgspec.structs.replace(waiting, models=[msgspec.structs.replace(waiting.models[0], outstanding=3)])
    done = status(EngineStats(steps=4), JobStatus("j", finished=2, failed=1, generated_tokens=9))
    points = recorded(None, waiting, running, running, done).series.points()
    assert [(point.done, point.tokens) for point in points] == [(0, 0), (0, 0), (3, 9)]


@pytest.mark.parametrize(
    ("used", "told"),
    [([3, 316, 0], "316 of 4,096 blocks (8 %)"), ([0, 0, 0], "none whenever it was looked at, twice a second")],
)
def test_the_most_blocks_of_all_looks_are_told(used: list[int], told: str) -> None:
    looks = [status(EngineStats(steps=9 + n, blocks_used=each, blocks_total=4096)) for n, each in enumerate(used)]
    assert dict(engine_facts(recorded(*looks)))["most KV cache seen in use"] == told


def test_rows_without_times_are_told_beside_the_latencies_of_the_others() -> None:
    digest = Digest(1, 1)
    for number in range(400):
        digest.add(Facts(latency=None if number < 20 else 0.5, first_token=0.1), number)
    assert latencies(digest).unknown.startswith("20 rows of 400 carry no times")


def test_nothing_is_made_up_where_nobody_looked() -> None:
    assert over_time(None, "the workers were elsewhere").unknown == "not known here: the workers were elsewhere"
    assert engine_facts(recorded(None)) == []
    assert over_time(recorded(None), "").unknown == "the job was too short for a plot"
