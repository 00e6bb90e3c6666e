"""Short ones of the long checks, and that they tell what differs."""

import json
from collections.abc import Sequence

import pytest

from model_manager.engine.interface import Engine
from model_manager.wire.messages import Failure, Output, Request
from tests.truth import company
from tests.truth.engines import answers


def test_rows_are_the_same_in_company_in_float32(capsys: pytest.CaptureFixture[str]) -> None:
    assert company.main(["--dtype", "float32", "--rows", "8"]) == 0
    *_, said, last = capsys.readouterr().out.splitlines()
    assert said == "0 of 8 rows differ"
    assert json.loads(last) == {"dtype": "float32", "rows": 8, "seed": 0, "at_once": 1, "differ": 0}


def test_a_row_that_differs_in_company_is_told_with_its_first_other_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong_together(engine: Engine, requests: Sequence[Request]) -> dict[str, Output | Failure]:
        found = answers(engine, requests)
        other = found.get("row-1")
        if len(requests) > 1 and isinstance(other, Output):
            other.token_ids[5] += 1
        return found

    monkeypatch.setattr(company, "answers", wrong_together)
    assert company.main(["--rows", "3"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["row-1: differs from token 5 on", "1 of 3 rows differ"]
