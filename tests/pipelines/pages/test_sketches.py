from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.pipelines.pages.sketches import HistogramSketch, Lowest, Reservoir, Sample, Series, rates


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_every_number_lies_in_a_bar_and_none_is_lost(numbers: list[int]) -> None:
    counted = HistogramSketch()
    for number in numbers:
        counted.add(number)
    bars = counted.bars()
    assert sum(bar.rows for bar in bars) == counted.count == len(numbers)
    assert (counted.total, counted.least, counted.most) == (sum(numbers), min(numbers), max(numbers))
    assert all(before.high == after.low for before, after in pairwise(bars))
    assert bars[0].low <= min(numbers)
    assert bars[-1].high > max(numbers)
    for bar in bars if len(bars) < 40 else ():
        assert bar.rows == sum(bar.low <= number < bar.high for number in numbers)


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_a_quantile_is_at_most_a_bin_beside_the_right_one(numbers: list[int]) -> None:
    counted = HistogramSketch()
    for number in numbers:
        counted.add(number)
    right = sorted(numbers)[(len(numbers) - 1) // 2]
    assert right <= counted.quantile(0.5) <= max(right * 1.25, right + 1)
    assert counted.quantile(1.0) == max(numbers)


def test_a_sample_is_of_all_and_the_same_each_time() -> None:
    samples = []
    for _ in range(2):
        sample = Reservoir(20)
        for number in range(1000):
            sample.add(number)
        samples.append(sample.kept())
    assert samples[0] == samples[1]
    assert len({*samples[0]}) == 20
    assert max(samples[0]) > 500


@given(st.lists(st.floats(0, 1)))
def test_the_lowest_are_kept(values: list[float]) -> None:
    lowest = Lowest(3)
    for number, value in enumerate(values):
        lowest.add(value, number)
    assert sorted(values[number] for number in lowest.kept()) == sorted(values)[:3]


def test_a_long_series_keeps_its_ends_and_its_sum() -> None:
    series = Series(most=16)
    for second in range(1000):
        series.add(Sample(float(second), second * 2, second * 30))
    points = series.points()
    assert len(points) <= 16
    assert (points[0], points[-1]) == (Sample(0.0, 0, 0), Sample(999.0, 1998, 29970))
    found = rates(points, most=5)
    assert len(found) <= 6
    assert {(round(prompts), round(tokens)) for _, prompts, tokens in found} == {(2, 30)}


def test_the_look_at_the_end_is_no_speed_of_its_own() -> None:
    points = [Sample(0.0, 0, 0), Sample(1.0, 5, 50), Sample(2.0, 10, 100), Sample(2.01, 10, 100)]
    assert rates(points) == [(1.0, 5.0, 50.0), (2.0, 5.0, 50.0)]


def test_no_speed_is_made_of_one_point() -> None:
    assert rates([]) == rates([Sample(1.0, 1, 1)]) == rates([Sample(1.0, 1, 1), Sample(1.0, 2, 2)]) == []
