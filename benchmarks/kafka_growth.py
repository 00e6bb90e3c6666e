"""A million messages through one job: from a Kafka topic to a Kafka topic, on Prism, whose processes are watched.

    python -m benchmarks.kafka_growth --messages 1000000

The broker is on this machine, and its input topic is filled before the job starts; the engine computes no model. The
job's processes are looked at four times a second: resident memory, and the processor time that they have used. The
figures are those between two powers of ten of answered messages, from 1,000 on, so the job's start does not count.
`mb_per_100000_messages` is the slope of a line through a process's memory in the second half. As soon as there are as
many answers as messages they are read back: how many messages have none (`unanswered`), and how many answers come twice
(`doubled`). The broker is fetched
by Maven on first use, and Prism is built by Go, unless it is named. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.command_line import command_line
from benchmarks.growth import Watch, watched
from benchmarks.results import conclude
from benchmarks.storms.job import Job
from millrace.model_manager.client.status import stop_models
from tests.servers.kafka import Kafka, kafka
from tests.servers.prism import prism

_ROLES = ("launcher", "prism", "manager", "engine")
_PARTITIONS = 4
_LOOK = 0.25
"""Seconds between two looks at how many messages are answered."""
_FIRST_MARK = 1000
_STALLED = 300.0
"""Seconds without an answer after which the job is given up."""
_ENDED_WITHIN = 60.0
_AT_ONCE = 10_000
"""Messages that are read back together."""


@dataclass(frozen=True)
class Stretch:
    """What the messages up to a power of ten cost, beyond those up to the one before."""

    messages: int
    """Answered at its end."""
    messages_per_s: float
    ms_a_message: float
    """Processor time of the job's processes together."""
    ms_a_message_by_role: dict[str, float]
    mb: dict[str, float]
    """Most memory so far, in MB of 2^20, by role."""


@dataclass(frozen=True)
class _Mark:
    answered: int
    at: float
    cpu_s: dict[str, float]


def message(number: int) -> bytes:
    """A prompt."""
    return json.dumps({"id": f"m{number}", "prompt": f"What is {number % 97} + {number % 89}?"}).encode()


def number_of(key: bytes | None) -> int:
    """The number of the message that an answer, or a dead letter, is for."""
    assert key is not None, "an answer has its row's id as its key"
    return int(key[1:])


def stretches(watch: Watch, answered: Iterator[int], total: int) -> list[Stretch]:
    """One for each power of ten, taken as it is reached; `answered`: how many there are by now, again and again."""
    found: list[Stretch] = []
    before: _Mark | None = None
    following = _FIRST_MARK
    for count in answered:
        if count < min(following, total):
            continue
        mark = _Mark(count, time.monotonic(), watch.cpu_s())
        if before is not None:
            found.append(_between(before, mark, watch.peak_mb()))
            print(found[-1], flush=True)
        before = mark
        while following <= count:
            following *= 10
        if count >= total:
            break
    return found


def _between(before: _Mark, mark: _Mark, mb: dict[str, float]) -> Stretch:
    messages = mark.answered - before.answered
    used = {role: 1000 * (mark.cpu_s[role] - before.cpu_s[role]) / messages for role in mark.cpu_s}
    return Stretch(
        messages=mark.answered,
        messages_per_s=round(messages / (mark.at - before.at), 1),
        ms_a_message=round(sum(used.values()), 3),
        ms_a_message_by_role={role: round(ms, 3) for role, ms in used.items()},
        mb=mb,
    )


def _counts(broker: Kafka, topic: str, job: Job) -> Iterator[int]:
    """Messages in a topic, until the job stands still or ends: then RuntimeError."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "counter"})
    last, since = -1, time.monotonic()
    try:
        while True:
            count = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
            yield count
            if job.status() is not None or time.monotonic() - since > _STALLED:
                raise RuntimeError(f"{count:,} answers, and no more come\n{job.said()[-3000:]}")
            last, since = (count, time.monotonic()) if count > last else (last, since)
            time.sleep(_LOOK)
    finally:
        consumer.close()


def times_each(broker: Kafka, topic: str, total: int) -> np.ndarray:
    """How often each message, by number, has an answer."""
    found = np.zeros(total, np.int64)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    left = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
    since = time.monotonic()
    while left > 0:
        records = [each for each in consumer.consume(_AT_ONCE, timeout=1) if each.error() is None]
        left, since = left - len(records), time.monotonic() if records else since
        np.add.at(found, [number_of(each.key()) for each in records], 1)
        if time.monotonic() - since > _STALLED:
            raise RuntimeError(f"{left:,} answers are not given by the broker")
    consumer.close()
    return found


def measure(folder: Path, location: Path, total: int) -> dict[str, object]:
    """One job of so many messages, and its figures."""
    with kafka(folder) as broker:
        prompts, answers = broker.topic(_PARTITIONS), broker.topic()
        broker.send(prompts, map(message, range(total)))
        flags = ["--backend=fake", "--max_tokens=8", "--linger=1", f"--prism_location={location}", "--quiet"]
        job = Job(folder, flags, (f"kafka:{broker.address}/{prompts}", f"kafka:{broker.address}/{answers}"))
        started = time.monotonic()
        with watched(job, _ROLES) as watch:
            job.start()
            try:
                found = stretches(watch, _counts(broker, answers, job), total)
                rate = total / (time.monotonic() - started)
                assert job.process is not None
                job.process.send_signal(signal.SIGINT)
                status = job.wait(_ENDED_WITHIN)
            finally:
                job.kill()
        stop_models(job.runtime)
        times = times_each(broker, answers, total)
    return {
        "messages": total,
        "messages_per_s": round(rate, 1),
        "stretches": [*map(asdict, found)],
        "mb_per_100000_messages": watch.slopes(rate),
        "unanswered": int((times == 0).sum()),
        "doubled": int((times - 1).clip(0).sum()),
        "status": status,
    }


def _arguments() -> argparse.Namespace:
    parser = command_line("kafka_growth", __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the topic as the job starts")
    parser.add_argument("--prism_location", type=Path, help="Prism; by default built once")
    parser.add_argument("--results", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    """Measure, and print."""
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="kafka-growth-") as place:
        figures = measure(Path(place), options.prism_location or prism(), options.messages)
    conclude(figures, options.results)


if __name__ == "__main__":
    main()
