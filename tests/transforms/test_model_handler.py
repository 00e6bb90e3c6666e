from typing import Any

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, KeyModelMapping, PredictionResult, RunInference

from millrace.model_manager.wire.errors import ConfigError, EngineLost
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.model_handler import ManagedModelHandler
from tests.transforms.clients import PickyClient
from tests.transforms.running import check, pipeline

pytestmark = pytest.mark.filterwarnings("ignore:Resource module is not available")


def handler(*arguments: Any, **options: Any) -> ManagedModelHandler:
    return ManagedModelHandler("stand-in", *arguments, open_client=PickyClient, **options)


def test_an_element_that_is_no_prompt_is_known_by_its_rows_id() -> None:
    used = handler()
    (result,) = used.run_inference([{"id": "r7", "prompt": 3}], used.load_model())
    assert (result.inference.id, result.inference.error.kind) == ("r7", "InvalidRequest")


def test_run_inference_answers_each_example() -> None:
    with pipeline() as p:
        results = p | beam.Create(["one two", "three"]) | RunInference(handler())

        def holds(rows: list[PredictionResult]) -> bool:
            pairs = sorted((row.example, row.inference.text, row.model_id) for row in rows)
            return pairs == [("one two", "ONE TWO", "stand-in"), ("three", "THREE", "stand-in")]

        check(results, holds)


def test_a_failed_request_leaves_its_batch_alone() -> None:
    examples = ["fine", "nan", "", Prompt(id="p", text="also fine", columns={"x": 1})]
    with pipeline() as p:
        results = p | beam.Create(examples, reshuffle=False) | RunInference(handler())
        kinds = results | beam.Map(lambda row: row.inference.error.kind if row.inference.error else row.inference.text)
        check(kinds, lambda found: sorted(found) == ["ALSO FINE", "FINE", "InvalidRequest", "NonFiniteLogits"])


def test_keys_and_exception_handling_work_as_with_any_handler() -> None:
    with pipeline() as p:
        keyed = p | beam.Create([("k", "one")])
        main, other = keyed | RunInference(KeyedModelHandler(handler())).with_exception_handling()
        texts = main | beam.MapTuple(lambda key, row: (key, row.inference.text))
        check(texts, lambda rows: rows == [("k", "ONE")], "main")
        check(other.failed_inferences, lambda rows: rows == [], "other")


def test_keys_choose_the_model_by_beams_own_mapping() -> None:
    mappings = [
        KeyModelMapping(keys, ManagedModelHandler(f"org/{keys[0]}", open_client=PickyClient))
        for keys in (["a", "b"], ["c"])
    ]
    with pipeline() as p:
        keyed = p | beam.Create([("a", "one"), ("b", "two"), ("c", "three")])
        answers = keyed | RunInference(KeyedModelHandler(mappings))
        found = answers | beam.MapTuple(lambda key, row: (key, row.inference.text, row.inference.model))
        check(
            found, lambda rows: sorted(rows) == [("a", "ONE", "org/a"), ("b", "TWO", "org/a"), ("c", "THREE", "org/c")]
        )


def test_inference_args_are_sampling_parameters() -> None:
    with pipeline() as p:
        inference = RunInference(handler(SamplingParams(max_tokens=5)), inference_args={"max_tokens": 1})
        results = p | beam.Create(["one two"]) | inference
        check(results, lambda rows: [row.inference.text for row in rows] == ["ONE"])


def test_unknown_inference_args_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_token"):
        handler().validate_inference_args({"max_token": 1})


def test_a_lost_engine_fails_the_batch() -> None:
    with pytest.raises(EngineLost), pipeline() as p:
        _ = p | beam.Create(["lost"]) | RunInference(handler())


def test_batches_can_be_bounded_and_the_model_is_not_shared_twice() -> None:
    assert handler(max_batch_size=32).batch_elements_kwargs()["max_batch_size"] == 32
    assert not handler().share_model_across_processes()
    assert handler().get_metrics_namespace() == "BeamML_Millrace"
