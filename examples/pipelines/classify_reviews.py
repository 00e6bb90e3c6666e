"""Labels documents. The probabilities of the labels are the model's own: nothing is generated."""

import apache_beam as beam

from millrace import Classify

REVIEWS = ["What an excellent guest house!", "This is the worst dinner I know."]

if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        keyed = pipeline | beam.Create([(review, review) for review in REVIEWS])
        labels = keyed | Classify(["positive", "negative"], "millrace-tiny")
        labels | beam.MapTuple(lambda review, found: print(f"{found.label}: {review}"))
