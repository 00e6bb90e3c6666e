from pathlib import Path

import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.runners.worker.bundle_processor import DataInputOperation
from apache_beam.utils.timestamp import Duration, Timestamp

from millrace.transforms.elements.completions import StructCoder
from millrace.transforms.streams.unbounded import (
    END,
    Finals,
    FromStart,
    PositionRange,
    PositionTracker,
    ReadingTurn,
    StreamTime,
    pause,
)


def test_a_reader_claims_one_position_after_the_other_and_gives_back_the_rest() -> None:
    tracker = PositionTracker(PositionRange(5))
    assert tracker.try_claim(5)
    assert tracker.try_claim(9)
    assert tracker.try_split(0) == (PositionRange(5, 10), PositionRange(10))
    assert not tracker.try_claim(10)
    tracker.check_done()


def test_a_reader_that_read_nothing_gives_back_everything() -> None:
    tracker = PositionTracker(PositionRange(5))
    assert tracker.try_split(0) == (PositionRange(5, 5), PositionRange(5))
    assert tracker.check_done()


def test_a_runner_does_not_split_what_is_read_in_order() -> None:
    tracker = PositionTracker(PositionRange(0))
    assert tracker.try_split(0.5) is None
    assert tracker.try_claim(0)


def test_how_far_a_reader_is_does_not_depend_on_the_bytes_that_beam_counted() -> None:
    tracker = PositionTracker(PositionRange(5))
    tracker.try_claim(5)
    counted = tracker.current_progress().with_completed(float("nan"))
    assert (counted.fraction_completed, counted.fraction_remaining) == (0.5, 0.5)


def test_a_runner_that_asks_for_a_split_before_a_byte_is_counted_gets_one_after_the_present_element() -> None:
    progress = PositionTracker(PositionRange(5)).current_progress().with_completed(float("nan"))
    split = DataInputOperation._compute_split(0, progress.fraction_completed, float("inf"), 0.5, 4)
    assert split == (1, [], [], 2)


def test_a_reader_must_give_back_the_rest() -> None:
    with pytest.raises(ValueError, match="without giving back"):
        PositionTracker(PositionRange(0)).check_done()


def test_a_reader_that_is_to_read_no_more_leaves_nothing_behind() -> None:
    tracker = PositionTracker(PositionRange(5))
    assert tracker.try_claim(5)
    assert not tracker.try_claim(END)
    assert tracker.check_done()
    assert (tracker.current_restriction(), tracker.try_split(0)) == (PositionRange(5, 6), None)


def test_a_turn_is_the_last_where_the_file_is(tmp_path: Path) -> None:
    now = [0.0]
    turn = ReadingTurn(str(tmp_path / "drain"), clock=lambda: now[0])
    before = turn.is_over, turn.is_last
    (tmp_path / "drain").touch()
    at_once, now[0] = turn.is_over, 0.5
    assert (*before, at_once, turn.is_over, turn.is_last) == (False, False, False, True, True)


def test_when_the_job_is_drained_nothing_more_is_read() -> None:
    assert FromStart().truncate(None, PositionRange(3)) is None


def test_spans_are_encoded_the_same_each_time() -> None:
    coder = StructCoder(PositionRange)
    assert coder.decode(coder.encode(PositionRange(3))) == PositionRange(3)
    assert coder.encode(PositionRange(3)) == coder.encode(PositionRange(3))


def test_timestamps_never_fall_behind_the_watermark() -> None:
    estimator = ManualWatermarkEstimator(None)
    times = StreamTime(estimator, clock=lambda: 100.0)
    assert [times.of(seconds) for seconds in (10, 12, 11)] == [Timestamp(10), Timestamp(12), Timestamp(12)]
    assert estimator.current_watermark() == Timestamp(12)
    times.idle()
    assert estimator.current_watermark() == Timestamp(98)
    assert times.of(50) == Timestamp(98)


def test_a_message_of_the_future_does_not_stop_time() -> None:
    estimator = ManualWatermarkEstimator(None)
    now = [100.0]
    times = StreamTime(estimator, clock=lambda: now[0])
    assert times.of(4e9) == Timestamp(100)
    assert times.of(1.8e18) == Timestamp(100)  # nanoseconds, where seconds are due
    now[0] = 110.0
    assert times.of(109) == Timestamp(109)


def test_what_is_final_is_told_at_once() -> None:
    told = list[list[int]]()
    finals = Finals(told.append, late=False)
    finals.on_final(finals.seen(), [1])
    assert (told, finals.seen()) == ([[1]], [])


def test_on_flink_what_is_final_is_told_when_a_bundle_is_that_began_after_it() -> None:
    told = list[int]()
    finals = Finals(told.extend, late=True)
    before, beside = finals.seen(), finals.seen()
    finals.on_final(before, [1])
    finals.on_final(beside, [2])  # over when the checkpoint was complete, and perhaps not in it
    assert told == []
    after, another = finals.seen(), finals.seen()
    finals.on_final(after, [3])
    assert told == [1, 2]
    finals.on_final(another, [])
    assert told == [1, 2]
    finals.on_final(finals.seen(), [])
    assert (told, finals.seen()) == ([1, 2, 3], [])


def test_a_turn_is_over_after_its_time_or_its_messages() -> None:
    now = [0.0]
    turn = ReadingTurn(clock=lambda: now[0])
    turn.took()
    over = [turn.is_over]
    now[0] = ReadingTurn.MAX_SECONDS
    assert [*over, turn.is_over] == [False, True]
    full = ReadingTurn(clock=lambda: 0.0)
    full.took(ReadingTurn.MAX_MESSAGES)
    assert full.is_over


def test_readers_go_on_a_little_apart() -> None:
    pauses = [pause(number) for number in range(8)]
    assert len(set(pauses)) == 8
    assert pause(8) == pauses[0] == Duration(0)
    assert max(pauses) < Duration(1)
