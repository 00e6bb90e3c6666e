"""Pub/Sub: prompts from a subscription or a topic, results to a topic.

On Dataflow, whose service reads and writes Pub/Sub itself, by Beam's own transforms. No other runner has an
implementation of them, so elsewhere the workers do it, over google-cloud-pubsub. What a bundle pulled is acknowledged
when the runner has committed the bundle; until then its leases are renewed, however long the answers take. What a
failed bundle pulled is given back and delivered again (at least once).
"""

from .connection import PubSubFailed
from .reader import ReadPubSub
from .writer import WritePubSub

__all__ = ["PubSubFailed", "ReadPubSub", "WritePubSub"]
