"""A multiple-choice test: the choice with the highest log-probability is the answer."""

import apache_beam as beam

from millrace import Score, Scored

QUESTIONS = [
    {"prompt": "What is the capital of Peru?", "continuations": ["Mexico City", "Lima", "Rome"]},
    {"prompt": "What is the capital of Italy?", "continuations": ["Mexico City", "Lima", "Rome"]},
]


def best(row: Scored) -> str:
    """The choice that the model finds likeliest."""
    return str(max(row.scores, key=lambda each: each.logprob).continuation)


if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        scored = pipeline | beam.Create(QUESTIONS) | Score("millrace-tiny")
        scored | beam.Map(best) | beam.Map(print)
