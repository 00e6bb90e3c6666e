"""Histograms against the library's own."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Theirs

from millrace.serving.metrics.histogram import LabelledHistogram

BOUNDS = (0.5, 1.0, 10.0)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80).map(lambda n: n / 4), st.integers(1, 5)), max_size=20)
)
def test_a_value_counted_many_times_is_as_many_observations(seen: list[tuple[str, float, int]]) -> None:
    ours = LabelledHistogram("h", "meaning", ("label",), BOUNDS)
    theirs = Theirs("h", "meaning", ("label",), buckets=BOUNDS, registry=CollectorRegistry())
    for label, value, count in seen:
        ours.observe((label,), value, count)
        for _ in range(count):
            theirs.labels(label).observe(value)
    (expected,) = theirs.collect()
    made = {(each.name, *each.labels.items()): each.value for each in ours.family().samples}
    assert made == {
        (each.name, *each.labels.items()): each.value for each in expected.samples if not each.name.endswith("_created")
    }
