from __future__ import annotations

import math

from millrace.model_manager.engine.scheduling.acceptance import Acceptance

LEAST = 0.25


def noted(*results: tuple[int, int]) -> Acceptance:
    acceptance = Acceptance()
    for drafted, accepted in results:
        acceptance.note(drafted, accepted, num_output_tokens=10, least=LEAST)
    return acceptance


def test_so_many_drafts_are_worthwhile_that_the_last_is_likely_enough() -> None:
    assert Acceptance().worthwhile(0, LEAST) == 2  # 0.5 ** 2 is 0.25
    good = noted(*[(4, 4)] * 10)
    assert good.rate ** good.worthwhile(10, LEAST) >= LEAST > good.rate ** (good.worthwhile(10, LEAST) + 1)


def test_what_lies_behind_the_first_wrong_draft_says_nothing() -> None:
    assert noted((1, 0)).rate == noted((8, 0)).rate
    assert noted((3, 2)).rate == noted((2, 2), (1, 0)).rate


def test_after_many_wrong_drafts_it_rests_and_then_one_try_decides() -> None:
    acceptance = noted(*[(1, 0)] * 6)
    assert acceptance.worthwhile(10, LEAST) == acceptance.worthwhile(41, LEAST) == 0
    assert acceptance.worthwhile(42, LEAST) == 1
    acceptance.note(1, 0, num_output_tokens=43, least=LEAST)
    assert acceptance.worthwhile(44, LEAST) == 0
    assert acceptance.worthwhile(75, LEAST) == 1
    acceptance.note(1, 1, num_output_tokens=76, least=LEAST)
    assert acceptance.worthwhile(77, LEAST) >= 1


def test_without_a_bound_any_number_is_worthwhile() -> None:
    acceptance = Acceptance()
    acceptance.note(5, 0, num_output_tokens=1, least=0.0)
    assert acceptance.worthwhile(2, 0.0) == math.inf
