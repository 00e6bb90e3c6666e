"""Embeds texts and a question, and finds the text whose vector is nearest by cosine."""

import apache_beam as beam
import numpy as np

from millrace import Embed, Embedded

TEXTS = {"q": "2 wool lamps for Oslo", "a": "3 wool lamps for Bergen", "b": "What is the capital of Peru?"}


def nearest(found: list[tuple[str, Embedded]]) -> str:
    """The key of the text that is nearest to the question."""
    vectors = {key: np.array(each.embedding) for key, each in found}
    question = vectors.pop("q")
    return max(vectors, key=lambda key: float(vectors[key] @ question))


if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        vectors = pipeline | beam.Create(list(TEXTS.items())) | Embed("millrace-tiny", pooling="mean")
        together = vectors | beam.combiners.ToList()
        together | beam.Map(nearest) | beam.Map(lambda key: print(f"nearest: {TEXTS[key]}"))
