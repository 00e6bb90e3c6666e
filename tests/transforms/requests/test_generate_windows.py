"""Generate keeps the timestamps, windows and panes of its elements."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.window import FixedWindows, SlidingWindows, TimestampedValue

from millrace.model_manager.wire.config import ModelConfig
from millrace.transforms.elements.completions import Completion
from millrace.transforms.generate import Generate
from tests.transforms.clients import RecordingClient, ReversingClient, generate
from tests.transforms.running import check, pipeline


class Placed(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """(text, timestamp, windows, pane index) of a completion."""

    def process(self, completion: Completion, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        windows = [(int(window.start), int(window.end)) for window in windowed.windows]
        yield completion.text, float(windowed.timestamp), tuple(sorted(windows)), windowed.pane_info.index


def test_each_result_keeps_the_timestamp_and_window_of_its_own_element() -> None:
    """Though the answers come in reverse order, and from calls for other elements."""
    client = ModelConfig(model="stand-in", max_num_seqs=4)
    with pipeline() as p:
        prompts = (
            p | beam.Create([TimestampedValue(f"p{n}", n * 10) for n in range(8)]) | beam.WindowInto(FixedWindows(20))
        )
        placed = prompts | Generate(client, open_client=ReversingClient) | beam.ParDo(Placed())
        expected = [(f"P{n}", n * 10.0, ((n * 10 // 20 * 20, n * 10 // 20 * 20 + 20),), 0) for n in range(8)]
        check(placed, lambda rows: sorted(rows) == expected)


def test_an_element_of_many_windows_is_asked_once_and_comes_back_in_all_of_them(
    recorded: list[tuple[str, str]],
) -> None:
    with pipeline() as p:
        prompts = (
            p
            | beam.Create([TimestampedValue(f"p{n}", 100 + n * 10) for n in range(5)])
            | beam.WindowInto(SlidingWindows(size=30, period=10))
        )
        placed = prompts | generate(client=RecordingClient) | beam.ParDo(Placed())
        expected = [
            (f"P{n}", 100 + n * 10.0, tuple((100 + n * 10 - back, 130 + n * 10 - back) for back in (20, 10, 0)), 0)
            for n in range(5)
        ]
        check(placed, lambda rows: sorted(set(rows)) == expected)  # Beam's check itself sees each once a window
    assert len([what for what, _ in recorded if what == "submit"]) == 5


def test_panes_are_kept() -> None:
    with pipeline() as p:
        panes = (
            p
            | beam.Create([("k", TimestampedValue("a", 1))])
            | beam.MapTuple(lambda key, value: TimestampedValue((key, value.value), value.timestamp))
            | beam.WindowInto(FixedWindows(10))
            | beam.GroupByKey()
            | beam.FlatMapTuple(lambda _key, values: values)
        )
        before = panes | "Before" >> beam.Map(lambda _, pane=beam.DoFn.PaneInfoParam: (pane.is_last, pane.timing))
        after = (
            panes
            | generate()
            | "After" >> beam.Map(lambda _, pane=beam.DoFn.PaneInfoParam: (pane.is_last, pane.timing))
        )
        check((before, after) | beam.Flatten(), lambda rows: len(rows) == 2 and rows[0] == rows[1] == (False, 1))


def test_a_stream_is_answered_in_its_windows() -> None:
    stream = test_stream.TestStream()
    for second in range(0, 40, 10):
        stream = stream.add_elements([TimestampedValue(f"p{second}", second)]).advance_watermark_to(second + 10)
    with beam.Pipeline(options=PipelineOptions(["--streaming"])) as p:
        counts = (
            p
            | stream.advance_watermark_to_infinity()
            | beam.WindowInto(FixedWindows(20))
            | generate()
            | beam.Map(lambda completion: completion.text)
            | beam.combiners.ToList().without_defaults()
        )
        check(counts, lambda rows: sorted(sorted(row) for row in rows) == [["P0", "P10"], ["P20", "P30"]])
