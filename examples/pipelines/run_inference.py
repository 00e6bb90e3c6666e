"""Beam's own RunInference, with millrace's handler: a pipeline that has RunInference changes one argument."""

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference

from millrace import ManagedModelHandler

if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        prompts = pipeline | beam.Create(["What is the capital of Mexico?", "40+60 = ?"])
        results = prompts | RunInference(ManagedModelHandler("millrace-tiny"), inference_args={"max_tokens": 16})
        results | beam.Map(lambda result: print(f"{result.example} {result.inference.text}"))
