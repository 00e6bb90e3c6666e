"""Turns of clients: no clock, no server."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.serving.requests.turns import FairSemaphore, Turns


def test_a_client_with_one_request_comes_before_the_second_of_one_with_many() -> None:
    turns = Turns()
    many = [turns.next("many") for _ in range(500)]
    assert many[0] <= turns.next("single") < many[1]


def test_a_client_gets_no_credit_for_the_time_in_which_it_asked_nothing() -> None:
    turns = Turns()
    for _ in range(100):
        turns.serve(turns.next("busy"))
    late = [turns.next("late") for _ in range(10)]
    assert late[0] <= turns.next("busy") < late[1]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_of_clients_that_wait_none_is_served_twice_before_another(clients: list[str]) -> None:
    turns = Turns()
    queue = sorted((turns.next(client), at, client) for at, client in enumerate(clients))
    left = {client: clients.count(client) for client in set(clients)}
    served = dict.fromkeys(left, 0)
    for _, _, client in queue:
        assert all(served[client] <= served[other] for other in left if served[other] < left[other])
        served[client] += 1


def test_places_are_given_in_turn_and_a_client_that_stops_waiting_takes_none() -> None:
    async def use(slots: FairSemaphore, client: str, order: list[str], may_go_on: asyncio.Event) -> None:
        async with slots.of(client):
            order.append(client)
            await may_go_on.wait()

    async def run() -> list[str]:
        slots, may_go_on = FairSemaphore(1), asyncio.Event()
        order: list[str] = []
        many = [asyncio.create_task(use(slots, "many", order, may_go_on)) for _ in range(5)]
        await asyncio.sleep(0)
        single = asyncio.create_task(use(slots, "single", order, may_go_on))
        await asyncio.sleep(0)
        many[1].cancel()
        may_go_on.set()
        await asyncio.gather(*many, single, return_exceptions=True)
        async with asyncio.timeout(60), slots.of("last"):
            order.append("last")
        return order

    assert asyncio.run(run()) == ["many", "single", "many", "many", "many", "last"]


def test_the_last_slot_is_left_to_a_client_that_has_none() -> None:
    async def run() -> list[str]:
        slots, order = FairSemaphore(3), []

        async def use(client: str, may_go_on: asyncio.Event) -> None:
            async with slots.of(client):
                order.append(client)
                await may_go_on.wait()

        never, at_once = asyncio.Event(), asyncio.Event()
        at_once.set()
        many = [asyncio.create_task(use("many", never)) for _ in range(5)]
        await asyncio.sleep(0)
        for client in ("single", "other"):
            async with asyncio.timeout(60):
                await use(client, at_once)
        never.set()
        await asyncio.gather(*many)
        return order

    assert asyncio.run(run()) == ["many", "many", "single", "other", "many", "many", "many"]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 4), st.data())
def test_whoever_waits_gets_a_slot_however_others_stop(clients: list[str], count: int, data: st.DataObject) -> None:
    async def run() -> None:
        slots, inside, ended = FairSemaphore(count), set[int](), []
        leave = [asyncio.Event() for _ in clients]

        async def use(number: int, client: str) -> None:
            async with slots.of(client):
                inside.add(number)
                assert len(inside) <= count
                try:
                    await leave[number].wait()
                finally:
                    inside.discard(number)
            ended.append(number)

        tasks = [asyncio.create_task(use(number, client)) for number, client in enumerate(clients)]
        await asyncio.sleep(0)
        stopped = data.draw(st.sets(st.sampled_from(range(len(clients)))))
        for number in stopped:
            tasks[number].cancel()
            if data.draw(st.booleans()):
                await asyncio.sleep(0)
        for event in leave:
            event.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert {*ended} | stopped == {*range(len(clients))}
        async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
            for client in range(count):  # all slots are free again
                await stack.enter_async_context(slots.of(client))

    asyncio.run(run())


def test_a_place_that_was_given_to_who_stopped_waiting_is_given_on() -> None:
    async def use(slots: FairSemaphore) -> None:
        async with slots.of("b"):
            pass

    async def run() -> None:
        slots = FairSemaphore(1)
        async with slots.of("a"):
            waiting = asyncio.create_task(use(slots))
            await asyncio.sleep(0)
        waiting.cancel()  # it has the slot, and did not run since
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(60), slots.of("c"):
            pass

    asyncio.run(run())
