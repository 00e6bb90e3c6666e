import shutil
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, KeyModelMapping, PredictionResult, RunInference

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, EngineLost
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.model_handler import ManagedModelHandler
from tests.runtime_folders import status_of
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


def test_keys_choose_among_the_models_of_one_manager(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real manager and its processes, with the torch-free engine: Beam holds a client of each model."""
    runtime = tmp_path_factory.mktemp("keyed") / "rt"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
    folders = {key: str(shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / key)) for key in ("a", "b")}
    soon, keyed = ManagerConfig(linger=60, orphan_grace=60), [(key, f"question {n}") for n in range(20) for key in "ab"]
    mappings = [
        KeyModelMapping(
            [key],
            ManagedModelHandler(
                ModelConfig(model=folder, backend="fake"), SamplingParams(max_tokens=3 + n), manager=soon
            ),
        )
        for n, (key, folder) in enumerate(folders.items())
    ]
    try:
        with pipeline() as p:
            answers = p | beam.Create(keyed) | RunInference(KeyedModelHandler(mappings))
            found = answers | beam.MapTuple(
                lambda key, row: (
                    key,
                    row.example,
                    row.model_id,
                    row.inference.model,
                    len(row.inference.token_ids),
                    row.inference.finish_reason,
                )
            )
            wanted = [(key, text, folders[key], folders[key], 3 + "ab".index(key), "length") for key, text in keyed]
            check(found, lambda rows: sorted(rows) == sorted(wanted))
        status = status_of(runtime)
        assert status is not None
        assert {model.model for model in status.models} == set(folders.values())
        assert sorted(job.finished for job in status.jobs) == [20, 20], "each handler is a job of the one manager"
    finally:
        stop_models(runtime)


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
