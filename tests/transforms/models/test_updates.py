"""The contents of an update, and updates in pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import AsIter, AsSingleton
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.embed import Embed
from millrace.transforms.files.file_systems import match
from millrace.transforms.generate import Generate
from millrace.transforms.models import updates
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.models.updates import FileWatch, WatchedFile, update_of, updated
from millrace.transforms.score import Score
from tests.transforms.clients import PickyClient
from tests.transforms.running import check, counters, pipeline

GIVEN = ModelConfig(model="org/a", revision="v1", dtype="bfloat16")


@pytest.mark.parametrize(
    ("update", "settings"),
    [
        ("org/b", {"model": "org/b", "dtype": "bfloat16"}),
        (" org/b\n", {"model": "org/b", "dtype": "bfloat16"}),
        ("org/a", {"model": "org/a", "revision": "v1", "dtype": "bfloat16"}),
        ({"revision": "v2"}, {"model": "org/a", "revision": "v2", "dtype": "bfloat16"}),
        ({"model": "org/b", "revision": "v2"}, {"model": "org/b", "revision": "v2", "dtype": "bfloat16"}),
        ({"model": "org/b", "dtype": "float32"}, {"model": "org/b", "dtype": "float32"}),
        (ModelConfig(model="org/b"), {"model": "org/b"}),
    ],
)
def test_an_update_is_on_top_of_what_the_transform_was_given(update: Any, settings: dict[str, Any]) -> None:
    assert updated(GIVEN, update) == ModelConfig.parse(settings)


@pytest.mark.parametrize("update", ["", {"modell": "b"}, {"max_num_seqs": "many"}, 7, ["org/b"]])
def test_what_is_no_update_is_refused(update: Any) -> None:
    with pytest.raises(ConfigError):
        updated(GIVEN, update)


def test_a_file_holds_a_name_or_an_object() -> None:
    assert update_of(" org/b \n") == "org/b"
    assert update_of('{"revision": "v2"}') == {"revision": "v2"}
    assert update_of(" \n") is None
    with pytest.raises(ConfigError, match="no JSON object"):
        update_of('{"revision"')


def test_a_watched_file_is_checked_when_the_graph_is_built() -> None:
    assert WatchedFile.parse("watch:gs://b/current", 5.0) == WatchedFile("gs://b/current", 5.0)
    for given, every in (("gs://b/current", 5.0), ("watch:", 5.0), ("watch:f", 0.0), ("watch:f", float("nan"))):
        with pytest.raises(ConfigError):
            WatchedFile.parse(given, every)
    updates: Any = "watch:f"
    with pytest.raises(ConfigError, match="takes a WatchedFile, a PCollection"):
        Generate("a", updates=updates)


def test_a_text_that_is_written_during_a_look_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes has emptied the file when the look begins."""
    file, told = tmp_path / "current", list[str]()
    file.touch()

    def written_meanwhile(path: str) -> Any:
        found = match(path)
        file.write_text("b")
        monkeypatch.undo()
        return found

    monkeypatch.setattr(updates, "match", written_meanwhile)
    watch = FileWatch(WatchedFile(str(file)), told.append)
    for _ in range(3):
        watch.look()
    assert told == ["b"]


def generate(**options: Any) -> Generate:
    return Generate("a", open_client=StandInClient, **options)


def models(rows: Any) -> Any:
    return rows | beam.Map(lambda row: (row.model, row.revision))


def test_of_a_side_inputs_elements_the_latest_names_the_model() -> None:
    with pipeline() as p:
        names = [TimestampedValue("late", 9), TimestampedValue({"model": "b", "revision": "r"}, 10)]
        updates = p | "Updates" >> beam.Create([*names, TimestampedValue("early", 1)])
        made = p | beam.Create(["x", "y"]) | generate(updates=updates)
        check(models(made), lambda rows: rows == [("b", "r")] * 2)


def test_score_and_embed_take_updates_too() -> None:
    with pipeline() as p:
        updates = p | "Updates" >> beam.Create(["b"])
        rows = p | beam.Create([{"prompt": "x", "continuations": ["y"]}])
        scored = rows | Score("a", open_client=StandInClient, updates=updates)
        embedded = rows | Embed("a", open_client=StandInClient, updates=AsSingleton(updates))
        check(models((scored, embedded) | beam.Flatten()), lambda rows: rows == [("b", "")] * 2)


def test_a_side_input_without_elements_changes_nothing() -> None:
    with pipeline() as p:
        updates = p | "Updates" >> beam.Create([])
        check(models(p | beam.Create(["x"]) | generate(updates=updates)), lambda rows: rows == [("a", "")])


def test_updates_by_window_hold_for_the_elements_of_theirs_and_keys_and_dead_letters_are_kept() -> None:
    with pipeline() as p:
        updates = (
            p
            | "Updates" >> beam.Create([TimestampedValue("b", 5), TimestampedValue("c", 15)])
            | "Their windows" >> beam.WindowInto(FixedWindows(10))
        )
        elements = [TimestampedValue(("k", "fine"), 6), TimestampedValue(("k", "nan"), 16)]
        rows = p | beam.Create(elements) | beam.WindowInto(FixedWindows(10))
        made, dead = rows | Generate("a", open_client=PickyClient, updates=updates).with_exception_handling()
        makers = (made, dead) | beam.Flatten() | beam.MapTuple(lambda key, row: (key, row.model))
        check(makers, lambda found: [key for key, _ in found] == ["k", "k"] and {m for _, m in found} <= {"b", "c"})


def test_updates_that_fail_are_counted_by_the_class_of_their_error_and_logged() -> None:
    with pipeline() as p:
        updates = p | "Updates" >> beam.Create([{"modell": "b"}])
        check(models(p | beam.Create(["x"]) | generate(updates=updates)), lambda rows: rows == [("a", "")])
    failed = [name for name in counters(p.result) if name.startswith("failed_model_change:")]
    assert failed == ["failed_model_change:ConfigError"]


def test_side_inputs_of_many_values_are_refused_when_the_graph_is_built() -> None:
    with pytest.raises(ConfigError, match="AsSingleton"), pipeline() as p:
        generate(updates=AsIter(p | beam.Create(["b"])))
