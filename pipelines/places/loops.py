"""A job that reads what it writes would go on without end, each answer a prompt: refused by what its flags name.

Kafka's brokers are compared by their names; which topic a Pub/Sub subscription is of, the subscription alone knows, and
its reader asks it (`topics_written`). Files are compared by the names that their writer gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.streams.kafka import KafkaTopic
from millrace.transforms.streams.kafka.address import SCHEME as KAFKA
from millrace.transforms.streams.pubsub import PubSubAddress
from millrace.transforms.streams.pubsub.address import SCHEME as PUBSUB
from millrace.transforms.writing.output_files import Kind, OutputFiles, extension_of, output_and_format

from .watched import WATCH, is_watched

_WINDOW = "20260101T120000Z-20260101T120100Z"
_LABELS = ([_WINDOW], [_WINDOW, "pane1"], ["resume1", _WINDOW])
"""Of the files of a stream: at the end of a window, later, of a second job."""
_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
_WHAT = {"--output": "answers", "--dead_letters": "dead letters"}


def check_apart(inputs: Sequence[str], output: str, letters: str | None, output_format: str | None) -> None:
    """Raises ConfigError where a stream's answers or dead letters would be its own input.

    `letters`: None where dead letters go beside the answers.
    """
    for source in inputs:
        for flag, address in _written(output, letters):
            if _is_one_topic(source, address):
                raise ConfigError(f"{flag} {address}: is --input too, so the job would answer its own {_WHAT[flag]}")
    for pattern in (source.removeprefix(WATCH) for source in inputs if source.startswith(WATCH)):
        for flag, address, path in _files(output, letters, output_format):
            if is_watched(path, pattern):
                raise ConfigError(
                    f"{flag} {address}: names files such as {path}, which --input {WATCH}{pattern} matches, so the job "
                    f"would answer its own {_WHAT[flag]}"
                )


def topics_written(output: str, letters: str | None) -> dict[str, str]:
    """Of Pub/Sub: the topics that a job writes, by their paths, and each topic's flag."""
    written = [(flag, address) for flag, address in _written(output, letters) if address.startswith(PUBSUB)]
    return {PubSubAddress.parse(address).path: flag for flag, address in reversed(written)}


def _written(output: str, letters: str | None) -> list[tuple[str, str]]:
    return [("--output", output), *([("--dead_letters", letters)] if letters else [])]


def _is_one_topic(source: str, target: str) -> bool:
    if source.startswith(PUBSUB) and target.startswith(PUBSUB):
        return PubSubAddress.parse(source) == PubSubAddress.parse(target)
    if source.startswith(KAFKA) and target.startswith(KAFKA):
        one, other = KafkaTopic.parse(source), KafkaTopic.parse(target)
        return one.topic == other.topic and bool(_brokers(one) & _brokers(other))
    return False


def _brokers(topic: KafkaTopic) -> set[tuple[str, int]]:
    pairs = [broker.lower().rpartition(":") for broker in topic.brokers.split(",")]
    return {("localhost" if host in _THIS_MACHINE else host, int(port)) for host, _, port in pairs}


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(output: str, letters: str | None, output_format: str | None) -> Iterator[tuple[str, str, str]]:
    """Flag, its value and the path of each file that a stream would write, or one like it."""
    kinds: list[tuple[str, str, Kind]] = [("--output", output, "completions")]
    if letters is None:
        kinds.append(("--output", output, "dead_letters"))
    else:
        kinds.append(("--dead_letters", letters, "completions"))
    for flag, address, kind in kinds:
        if not address.startswith((PUBSUB, KAFKA)):
            prefix, form = output_and_format(address, output_format if flag == "--output" else "jsonl")
            files = OutputFiles(prefix)
            shards = [files.shard(kind, labels, 0, 1, extension_of(kind, form)) for labels in _LABELS]
            paths = [*shards, f"{files.temporary}/building-{0:032x}", files.settings]
            yield from ((flag, address, path) for path in paths)
