"""A model that is known from an earlier load, where not all models fit: its first request loads it."""

from __future__ import annotations

import msgspec
import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelDoesNotFit
from millrace.model_manager.wire.status import ModelInfo
from tests.model_manager.manager.crowd import A, B, Crowd
from tests.model_manager.manager.router_world import INFO

PINNED = ModelConfig(model="org/c", backend="fake", max_num_seqs=4, pinned=True)


def beside_work(known: ModelInfo | None = INFO) -> Crowd:
    """The first model is loaded and works; there is no room for another."""
    crowd = Crowd(known)
    crowd.open(A, on_demand=True)
    assert (crowd.running, crowd.opened) == ({A.key}, []), "alone it is loaded as it is opened"
    crowd.load(A)
    crowd.submit(A, "row")
    return crowd


def test_where_not_all_fit_a_known_model_is_opened_on_demand_and_loaded_for_its_first_request() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    assert crowd.opened == [A.key, B.key]
    assert crowd.limits == {A.key: 64, B.key: 64}
    crowd.finish(A, "row")
    crowd.pass_time(30)
    assert crowd.running == {A.key}, "nobody has a request for the other"
    assert (crowd.status(B).state, crowd.status(B).loads) == ("idle", 0)
    crowd.submit(B, "first")
    crowd.pass_time(1)
    assert crowd.running == {B.key}
    crowd.load(B)
    assert crowd.given[B.key] == ["first"]
    assert crowd.opened == [A.key, B.key], "told once"


@pytest.mark.parametrize(
    ("known", "pinned", "on_demand"), [(None, False, True), (INFO, True, True), (INFO, False, False)]
)
def test_a_model_that_is_new_or_pinned_or_wanted_at_once_is_loaded_as_it_is_opened(
    known: ModelInfo | None, pinned: bool, on_demand: bool
) -> None:
    crowd = beside_work(known)
    crowd.open(msgspec.structs.replace(B, pinned=pinned), on_demand=on_demand)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    assert crowd.opened == [A.key]
    assert crowd.running == {B.key}


def test_who_wants_a_model_at_once_waits_for_its_load_beside_who_opens_it_on_demand() -> None:
    crowd = beside_work()
    crowd.router.connect(2, observer=False)
    crowd.open(B)
    crowd.open(B, client=2, on_demand=True)
    assert crowd.opened == [A.key, B.key]
    crowd.finish(A, "row")
    crowd.pass_time(1)
    assert crowd.running == {B.key}, "the first client waits for it"
    crowd.load(B)
    assert crowd.opened == [A.key, B.key, B.key]


def test_a_load_that_has_begun_goes_on_when_the_model_is_opened_on_demand() -> None:
    crowd = Crowd(known=INFO)
    crowd.open(A, on_demand=True)
    crowd.open(B, on_demand=True)
    crowd.pass_time(1)
    assert crowd.running == {A.key}
    assert crowd.opened == [B.key]


def test_the_engines_of_a_model_that_is_opened_on_demand_count_all() -> None:
    crowd = Crowd(known=INFO, need=30)
    crowd.open(A)
    crowd.load(A)
    crowd.open(msgspec.structs.replace(B, num_engines=3), on_demand=True)
    assert crowd.limits[B.key] == 3 * crowd.limits[A.key]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_model_that_was_loaded_before_is_known_unless_there_was_little_memory(is_cut: bool) -> None:
    crowd = Crowd()
    crowd.open(A)
    crowd.load(A, msgspec.structs.replace(INFO, is_cut=is_cut))
    crowd.submit(A, "row")
    crowd.open(B)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(B)
    crowd.router.connect(2, observer=False)
    crowd.open(A, client=2, on_demand=True)
    assert crowd.opened == [A.key, B.key, *[A.key] * (not is_cut)]
    assert crowd.running == {B.key}


def test_a_load_that_fails_after_the_model_was_opened_on_demand_fails_its_requests_once() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    crowd.finish(A, "row")
    crowd.submit(B, "first")
    crowd.pass_time(1)
    crowd.router.model(B.key).cannot_load(0, ModelDoesNotFit("no").info(), crowd.now)
    crowd.settle()
    assert (crowd.refused, crowd.running) == ([(1, B.key)], set())


def test_a_model_that_was_opened_on_demand_waits_until_a_pin_of_another_client_is_over() -> None:
    crowd = beside_work()
    crowd.open(B, on_demand=True)
    crowd.router.connect(2, observer=False)
    crowd.open(PINNED, client=2)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(PINNED)
    crowd.submit(B, "first")
    crowd.pass_time(30)
    assert crowd.running == {PINNED.key}
    assert (crowd.refused, crowd.status(B).state) == ([], "waiting")
    crowd.router.disconnect(2, crowd.now)
    crowd.pass_time(30)
    assert crowd.running == {B.key}


def test_a_known_model_is_refused_as_it_is_opened_where_a_pinned_one_leaves_no_room() -> None:
    crowd = beside_work()
    crowd.open(PINNED)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(PINNED)
    crowd.open(B, on_demand=True)
    crowd.pass_time(1)
    assert crowd.refused == [(1, B.key)]


def test_a_job_is_refused_a_model_that_would_wait_for_the_jobs_own_pin_and_other_jobs_wait() -> None:
    """Each client has one model open, as those of a job over several models."""
    crowd = beside_work()
    for client, model in ((2, B), (3, B), (4, PINNED)):
        crowd.router.connect(client, observer=False)
        crowd.open(model, client=client, on_demand=True)
    crowd.finish(A, "row")
    crowd.pass_time(1)
    crowd.load(PINNED)
    crowd.submit(PINNED, "pinned", client=4, job="ours")
    crowd.submit(B, "other's", client=3, job="other")
    crowd.pass_time(30)
    assert (crowd.refused, crowd.status(B).state) == ([], "waiting")
    crowd.submit(B, "ours", client=2, job="ours")
    crowd.pass_time(1)
    assert crowd.refused == [(2, B.key)]
    crowd.finish(PINNED, "pinned")
    crowd.router.disconnect(4, crowd.now)
    crowd.pass_time(30)
    assert crowd.running == {B.key}
    crowd.load(B)
    assert crowd.given[B.key] == ["other's"]
