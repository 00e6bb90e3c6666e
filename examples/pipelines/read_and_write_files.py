"""Completes every line of a text file, and writes JSONL. Works alike for globs, gs://, CSV and Parquet."""

from pathlib import Path

import apache_beam as beam

from millrace import Generate, ReadPrompts, SamplingParams, WriteCompletions

if __name__ == "__main__":
    Path("prompts.txt").write_text("What is the capital of Peru?\n20 + 57 =\n")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        prompts = pipeline | ReadPrompts("prompts.txt")
        answers = prompts | Generate("millrace-tiny", SamplingParams(max_tokens=16))
        answers | WriteCompletions("out/answers", num_shards=1)  # out/answers-00000-of-00001.jsonl
