"""Two steps with one model: write answers, then score how likely each answer is. Both share one inference process."""

import apache_beam as beam

from millrace import Completion, Generate, SamplingParams, Score

QUESTIONS = {"peru": "What is the capital of Peru?", "sum": "20 + 57 ="}


def judged(pair: tuple[str, Completion]) -> tuple[str, dict[str, str]]:
    """A row for Score: the question, and the answer as its continuation."""
    key, answer = pair
    return key, {"prompt": QUESTIONS[key], "continuations": answer.text}


if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        questions = pipeline | beam.Create(list(QUESTIONS.items()))
        answers = questions | Generate("millrace-tiny", SamplingParams(max_tokens=16))
        scored = answers | beam.Map(judged) | Score("millrace-tiny")
        scored | beam.MapTuple(
            lambda key, row: print(f"{key}: {row.scores[0].continuation} {row.scores[0].logprob:.1f}")
        )
