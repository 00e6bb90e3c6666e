"""Documents become rows of a dataclass, in Parquet. A span is text of the document, word for word."""

from dataclasses import dataclass
from typing import Annotated

import apache_beam as beam

from millrace import Extract, Span, WriteTable


@dataclass
class Order:
    """What is asked of each document."""

    customer: Annotated[str, Span()]
    item: Annotated[str, Span()]
    quantity: int


if __name__ == "__main__":
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        documents = pipeline | beam.Create(["Order 77 from Anna Larsen: 2 lamps, 4.50 EUR each, ship to Oslo."])
        orders = documents | Extract(Order, "millrace-tiny")
        orders | WriteTable("out/orders", num_shards=1)  # out/orders-00000-of-00001.parquet
