"""Back-pressure: a producer much faster than the engine, for minutes; what a stream's job holds meanwhile, and loses.

    python -m benchmarks.backpressure --source kafka --minutes 10
    python -m benchmarks.backpressure --source pubsub --minutes 10 --prism_location ~/go/bin/prism

`millrace run` reads from a broker on this machine, on Beam's Prism, with an engine without a model whose speed is set;
the answers go back to the broker. While the producer sends, memory and backlog are sampled every second. Then the job
is killed with -9, and another one, whose engine is fast, does all that is left: what has no answer at the end is lost.
The broker is installed on first use (Kafka by Maven, Pub/Sub's test server by Go), and so is Prism, unless it is named.
The last line of output is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient

from benchmarks.command_line import command_line
from benchmarks.memory import rss_mb
from millrace.model_manager.wire.job_progress import running_jobs
from tests.servers.kafka import Kafka, kafka
from tests.servers.prism import prism
from tests.servers.pubsub import PubSub, pubsub

PARTITIONS = 4
_TOKENS = 20
_SEQUENCES = 8
_TICK = 0.05
_SETTLED = 1 / 3
"""Share of the time after which the job counts as steady."""


@dataclass(frozen=True)
class Report:
    """Counts of messages; memory of all processes of the job together, in MB of 2^20."""

    source: str
    seconds: float
    """That the producer sent."""
    sent: int
    answered: int
    """Rows answered by the end of that time."""
    most_held: int
    """That the broker had handed out and nobody had answered, at any time (Kafka does not know: 0)."""
    most_read_ahead: int
    """Rows that the job had read and not answered, as it says once a second."""
    backlog: int
    """Messages at the broker at the end of that time, not acknowledged or committed."""
    rss_mb: list[float]
    """Sampled, every tenth of the time."""
    rss_growth_mb_per_minute: float
    """Slope of a line through the samples of the steady state."""
    lost: int
    doubled: int
    """Answers beyond the first; what the killed job had in hand comes again."""
    drained_seconds: float


class Broker(Protocol):
    """What prompts come from and answers go to."""

    input: str
    output: str

    def send(self, begin: int, end: int) -> None:
        """Prompts of these numbers."""

    def not_done(self) -> int:
        """How many sent messages nobody has acknowledged or committed."""

    def held(self, answered: int) -> int:
        """What the job has taken and not answered."""

    def answers(self) -> list[str]:
        """Ids of answers since the last call."""


class KafkaBroker:
    """A topic of some partitions each way."""

    def __init__(self, broker: Kafka) -> None:
        self._broker = broker
        self._prompts, self._answers = broker.topic(PARTITIONS), broker.topic()
        self.input, self.output = (f"kafka:{broker.address}/{topic}" for topic in (self._prompts, self._answers))
        self._consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "fetch.wait.max.ms": 20})
        self._consumer.assign([TopicPartition(self._answers, 0, 0)])
        self._sent = 0

    def send(self, begin: int, end: int) -> None:
        self._broker.send(self._prompts, (prompt(number) for number in range(begin, end)))
        self._sent = end

    def not_done(self) -> int:
        return self._sent - self._broker.committed(self._prompts)

    def held(self, answered: int) -> int:  # noqa: ARG002
        return 0  # what a consumer has fetched is bounded by its settings, and not known to the broker

    def answers(self) -> list[str]:
        found = self._consumer.consume(10_000, timeout=0.1)
        return [(record.key() or b"").decode() for record in found if record.error() is None]


class PubSubBroker:
    """A topic and a subscription each way."""

    def __init__(self, server: PubSub) -> None:
        self._server = server
        self._prompts, answers = server.topic(), server.topic()
        self.input, self.output = f"pubsub:{server.subscription(self._prompts, 60)}", f"pubsub:{answers}"
        self._subscription = server.subscription(answers, 60)
        self._publisher, self._subscriber = PublisherClient(), SubscriberClient()
        self._sent = 0

    def send(self, begin: int, end: int) -> None:
        futures = [self._publisher.publish(self._prompts, prompt(number)) for number in range(begin, end)]
        for future in futures:
            future.result(timeout=60)
        self._sent = end

    def not_done(self) -> int:
        return self._sent - self._server.counts(self._prompts)["acknowledged"]

    def held(self, answered: int) -> int:
        return max(self._server.counts(self._prompts)["delivered"] - answered, 0)

    def answers(self) -> list[str]:
        with contextlib.suppress(DeadlineExceeded):
            found = self._subscriber.pull(subscription=self._subscription, max_messages=1000, timeout=1, retry=None)
            ids = [each.ack_id for each in found.received_messages]
            if ids:
                self._subscriber.acknowledge(subscription=self._subscription, ack_ids=ids)
            return [each.message.attributes["id"] for each in found.received_messages]
        return []


def prompt(number: int) -> bytes:
    """A row of some hundred bytes."""
    return json.dumps({"id": f"p{number}", "prompt": f"question {number} " + "and so on " * 20}).encode()


@contextlib.contextmanager
def job(broker: Broker, runtime: Path, location: Path, per_second: float) -> Iterator[subprocess.Popen[bytes]]:
    """`millrace run` with an engine of so many answers a second; killed with -9 at the end."""
    step = _SEQUENCES / (_TOKENS * per_second) if per_second else 0.0
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime), "MILLRACE_FAKE_STEP_SECONDS": str(step)}
    command = [
        sys.executable,
        "-m",
        "millrace",
        "run",
        "--input",
        broker.input,
        "--output",
        broker.output,
    ]
    command += ["--backend=fake", f"--max_tokens={_TOKENS}", f"--max_num_seqs={_SEQUENCES}", "--linger=0.5"]
    command += ["--orphan_grace=0.5", f"--prism_location={location}", "--quiet"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def measure(broker: Broker, folder: Path, location: Path, *, seconds: float, engine: float, producer: float) -> Report:
    """`engine` and `producer` are answers and prompts a second. Raises RuntimeError where a job ends by itself."""
    runtime, answers, samples = folder / "rt", Counter[str](), list[tuple[float, float]]()
    most_held = most_read_ahead = 0
    with job(broker, runtime, location, engine) as process:
        _until_answering(broker, answers, process)
        mark, begin = f"MILLRACE_RUNTIME_DIR={runtime}", time.monotonic()
        sender = Sender(broker, producer, begin + seconds)
        sender.start()
        while sender.is_alive():
            answers.update(broker.answers())
            most_held = max(most_held, broker.held(answers.total()))
            most_read_ahead = max(most_read_ahead, _read_ahead(runtime))
            samples.append((time.monotonic() - begin, rss_mb(process.pid, mark)))
            _check_running(process)
            time.sleep(max(begin + len(samples) - time.monotonic(), 0))
        sent, answered, backlog = sender.sent, answers.total(), broker.not_done()
    drained = time.monotonic()
    with job(broker, runtime, location, 0.0) as process:
        while len(answers) < sent and time.monotonic() < drained + 1500:
            answers.update(broker.answers())
            _check_running(process)
    return Report(
        source=broker.input.partition(":")[0],
        seconds=round(samples[-1][0], 1),
        sent=sent,
        answered=answered,
        most_held=most_held,
        most_read_ahead=most_read_ahead,
        backlog=backlog,
        rss_mb=[round(mb, 1) for _, mb in samples[:: max(len(samples) // 10, 1)]],
        rss_growth_mb_per_minute=round(_growth(samples, seconds * _SETTLED), 2),
        lost=sent - len(answers),
        doubled=answers.total() - len(answers),
        drained_seconds=round(time.monotonic() - drained, 1),
    )


class Sender(threading.Thread):
    """Sends a given number of prompts a second until a time, all of them, even if it stands still meanwhile."""

    def __init__(self, broker: Broker, per_second: float, end: float) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._per_second = per_second
        self._end = end
        self.sent = 1
        """The first was there before."""

    def run(self) -> None:
        begin, now = time.monotonic(), 0.0
        while now < self._end:
            time.sleep(_TICK)
            now = min(time.monotonic(), self._end)
            due = 1 + round((now - begin) * self._per_second)
            self._broker.send(self.sent, due)
            self.sent = due


def _until_answering(broker: Broker, answers: Counter[str], process: subprocess.Popen[bytes]) -> None:
    broker.send(0, 1)
    while not answers:
        _check_running(process)
        answers.update(broker.answers())


def _read_ahead(runtime: Path) -> int:
    """Rows that the job has read and not answered."""
    return sum(each.read - each.done - each.failed for each in running_jobs(runtime))


def _check_running(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"the job ended by itself, with status {process.returncode}")


def _growth(samples: list[tuple[float, float]], after: float) -> float:
    settled = np.array([sample for sample in samples if sample[0] >= after])
    return float(np.polyfit(settled[:, 0], settled[:, 1], 1)[0]) * 60


@contextlib.contextmanager
def broker_of(source: str, folder: Path) -> Iterator[Broker]:
    """A new broker of the kind."""
    servers: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Broker]]] = {
        "kafka": (kafka, KafkaBroker),
        "pubsub": (pubsub, PubSubBroker),
    }
    start, connect = servers[source]
    with start(folder) as server:
        yield connect(server)


def main() -> None:
    """Print the report."""
    parser = command_line("backpressure", __doc__)
    parser.add_argument("--source", choices=["kafka", "pubsub"], default="kafka", help="broker")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the producer sends")
    parser.add_argument("--engine", type=float, default=20.0, help="answers a second")
    parser.add_argument("--producer", type=float, default=200.0, help="prompts a second")
    parser.add_argument("--prism_location", type=Path, help="Prism; by default built once")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker_of(flags.source, Path(name)) as broker:
        location = flags.prism_location or prism()
        rates = {"engine": flags.engine, "producer": flags.producer}
        report = measure(broker, Path(name), location, seconds=60 * flags.minutes, **rates)
    print(json.dumps(asdict(report) | rates))


if __name__ == "__main__":
    main()
