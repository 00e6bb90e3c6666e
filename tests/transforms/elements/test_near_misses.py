import logging
import pickle
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from millrace.transforms.elements.completions import Prompt
from millrace.transforms.elements.near_misses import NearMiss, NearMisses, counted_near_misses
from millrace.transforms.generate import Generate
from millrace.transforms.model_handler import ManagedModelHandler
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.reading.read_prompts import ReadPrompts
from tests.transforms.running import counters, pipeline

MAX_TOKENS = NearMiss("max_token", "max_tokens")


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "millrace.transforms.elements.near_misses"]


@pytest.mark.parametrize("row_params", [True, False])
def test_a_misspelt_parameter_of_a_file_is_told_once_and_its_rows_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row_params: bool
) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "max_token": 5, "customer": 1}\n' * 7)
    (tmp_path / "b.csv").write_text("prompt,max_token\na,5\n")
    with caplog.at_level(logging.WARNING), pipeline() as p:
        _ = p | ReadPrompts(f"{tmp_path}/*", row_params=row_params)
    told = ["column 'max_token' is no parameter and is passed through: is max_tokens meant?"] if row_params else []
    assert [each.split(" (")[0] for each in warned(caplog)] == told
    assert counted_near_misses(counters(p.result)) == ({MAX_TOKENS: 8} if row_params else {})


def test_so_is_one_of_a_row_in_python_but_not_of_a_prompts_columns(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "a", "max_token": 5}, {"prompt": "b", "max_token": 5}, Prompt(text="c", columns={"temp": 1})]
    with caplog.at_level(logging.WARNING), pipeline() as p:
        _ = p | beam.Create(rows) | Generate("stand-in", open_client=StandInClient)
    assert len(warned(caplog)) == 1
    assert counted_near_misses(counters(p.result)) == {MAX_TOKENS: 2}


def test_so_is_one_of_run_inference(caplog: pytest.LogCaptureFixture) -> None:
    handler = ManagedModelHandler("stand-in", open_client=StandInClient)
    with caplog.at_level(logging.WARNING):
        list(handler.run_inference([{"prompt": "a", "max_token": 5}] * 2, handler.load_model()))
    assert len(warned(caplog)) == 1


def test_copies_for_several_workers_of_a_process_tell_a_name_once(caplog: pytest.LogCaptureFixture) -> None:
    original = NearMisses()
    copies = [pickle.loads(pickle.dumps(original)) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for each in copies:
            each.look({"temprature": 0})
    assert len(warned(caplog)) == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"params": {"temperature": 0.5}},
        {"generation_config": {"max_new_tokens": 5}},
        {"samplingParams": {"top_p": 0.5}},
    ],
)
def test_an_object_of_parameters_by_another_name_is_told(
    columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        NearMisses().look(columns)
    (told,) = warned(caplog)
    assert "is sampling_params meant?" in told


@pytest.mark.parametrize(
    "columns", [{"customer": 1}, {"params": {"colour": "red"}}, {"params": 3}, {3: "x"}, {"x" * 1000: {"seed": 1}}]
)
def test_further_columns_ride_along_in_silence(columns: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        NearMisses().look(columns)
    assert not warned(caplog)


def test_a_name_with_a_colon_is_counted_as_it_is() -> None:
    assert counted_near_misses({"near_miss:x:seeds:seed": 3, "requests": 5}) == {NearMiss("x:seeds", "seed"): 3}
