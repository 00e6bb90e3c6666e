"""Counts of answered requests as Prometheus's metrics, whoever counted them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from millrace.model_manager.wire.request_counts import BOUNDS, RequestCounts

_MEANINGS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token, of requests that generate.",
    "inter_token_latency_seconds": "Between two tokens of an answer: its mean, counted once for each token but the "
    "first.",
    "request_time_per_output_token_seconds": "Between two tokens of an answer: its mean, counted once an answer.",
    "e2e_request_latency_seconds": "From a request's arrival to the end of its answer.",
    "request_queue_time_seconds": "From a request's arrival to the first step of its prompt, counted once an answer.",
    "request_prefill_time_seconds": "From the first step of a prompt to the first token, counted once an answer.",
    "request_decode_time_seconds": "From the first token of an answer to its last, counted once an answer.",
    "request_inference_time_seconds": "From the first step of a prompt to the last token, counted once an answer.",
    "request_prompt_tokens": "Tokens of a request's prompts.",
    "request_generation_tokens": "Tokens of a request's answers.",
}
assert _MEANINGS.keys() == BOUNDS.keys()
_ENDS = {name: [*map(str, bounds), "+Inf"] for name, bounds in BOUNDS.items()}


def request_families(
    prefix: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], RequestCounts]]
) -> Iterator[Metric]:
    """A family for each histogram and one for the answers; `rows` are counts by the values of the labels."""
    rows = list(rows)
    for name, meaning in _MEANINGS.items():
        family = HistogramMetricFamily(prefix + name, meaning, labels=labels)
        for values, counts in rows:
            seen, ends = counts.histograms.get(name), _ENDS[name]
            if seen is not None and len(seen.counts) == len(ends):  # else of a manager of another version
                family.add_metric(values, [*zip(ends, accumulate(seen.counts), strict=True)], seen.total)
        yield family
    meaning = "Answers of the model, by what ended them: stop, length or deadline."
    answers = CounterMetricFamily(f"{prefix}request_success", meaning, labels=(*labels, "finished_reason"))
    for values, counts in rows:
        for reason, count in counts.answers.items():
            answers.add_metric((*values, reason), count)
    yield answers
