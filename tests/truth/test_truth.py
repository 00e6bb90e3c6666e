"""Short ones of the long checks, and that they tell what differs."""

import json
import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.interface import Engine
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.request import Failure, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.truth import company, outputs
from tests.truth.constraints_drawn import Drawn
from tests.truth.engines import FOLDER, answers


@pytest.mark.slow
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


@pytest.mark.slow
def test_constrained_outputs_are_those_of_a_mask_and_an_argmax(capsys: pytest.CaptureFixture[str]) -> None:
    assert outputs.main(["--count", "9", "--seed", "3"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("0 of 9 outputs differ")
    equal = re.search(r"\b(\d+) equal", last)
    assert equal is not None
    assert int(equal[1]) >= 3


def test_an_output_of_other_tokens_and_one_that_is_not_of_its_constraint_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Yes stands for no, and is one that the constraint takes; and a text that it does not take."""

    def wrong(engine: Engine, requests: Sequence[Request]) -> dict[str, Output | Failure]:
        found = answers(engine, requests)
        tokenizer = Tokenizer.load(FOLDER)
        for name, said in (("fixed-other", "no"), ("fixed-invalid", "maybe")):
            given = found[name]
            assert isinstance(given, Output)
            found[name] = replace(given, token_ids=tokenizer.encode(said, add_special_tokens=False), complete=True)
        return found

    def cases(_name: str, tokenizer: Tokenizer, _count: int, _seed: int) -> list[outputs.Case]:
        held = Drawn(
            "choice", Constraint(choice=("yes", "no")), lambda text: None if text in ("yes", "no") else "no way"
        )
        params = SamplingParams(max_tokens=9, constraint=held.constraint)
        names = ("fixed-other", "fixed-invalid", "fixed-right")
        return [outputs.Case(Request(name, tokenizer.encode("yes yes yes"), params), held) for name in names]

    monkeypatch.setattr(outputs, "answers", wrong)
    monkeypatch.setattr(outputs, "_cases", cases)
    assert outputs.compared("embedded", FOLDER, 3, 0) == {"tokens": 1, "invalid": 1, "equal": 1}
    told = capsys.readouterr().out
    assert "tokens: fixed-other max_tokens=9" in told
    assert "invalid: fixed-invalid" in told
