"""Draws several answers to each prompt, and keeps the one that most of them agree on (self-consistency)."""

from collections import Counter

import apache_beam as beam

from millrace import Completion, Generate, SamplingParams

PARAMS = SamplingParams(n=5, temperature=0.7, seed=1, max_tokens=16)


def vote(answer: Completion) -> str:
    """The commonest answer, and how many answers agree on it."""
    text, count = Counter(each.text.strip() for each in answer.choices).most_common(1)[0]
    return f"{text} ({count} of {PARAMS.n})"


if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        answers = pipeline | beam.Create(["What is the capital of Italy?"]) | Generate("millrace-tiny", PARAMS)
        answers | beam.Map(vote) | beam.Map(print)
