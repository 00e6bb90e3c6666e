"""Failed prompts go to an output of their own. The job fails only if more than half of the prompts fail."""

import apache_beam as beam

from millrace import Generate

PROMPTS = ["What is the capital of Peru?", "20 + 57 =", ""]  # nothing can be made of an empty prompt

if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        prompts = pipeline | beam.Create(PROMPTS)
        answers, failed = prompts | Generate("millrace-tiny").with_exception_handling(threshold=0.5)
        answers | "Answers" >> beam.Map(lambda answer: print("answer:", answer.text))
        failed | "Failed" >> beam.Map(lambda letter: print("failed:", letter.reason))
