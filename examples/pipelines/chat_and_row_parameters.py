"""Chat messages as prompts. Each row has sampling parameters of its own, on top of the job's."""

import apache_beam as beam

from millrace import Generate, Prompt, SamplingParams

ROWS = [
    Prompt(id="capital", messages=[{"role": "user", "content": "What is the capital of Italy?"}]),
    Prompt(
        id="short",
        messages=[{"role": "user", "content": "What is the capital of Mexico?"}],
        params={"max_tokens": 2},
    ),
]

if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        answers = pipeline | beam.Create(ROWS) | Generate("millrace-tiny", SamplingParams(max_tokens=32))
        answers | beam.Map(lambda answer: print(f"{answer.id}: {answer.text} ({answer.finish_reason})"))
