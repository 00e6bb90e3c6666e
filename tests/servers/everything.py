"""Installs every server that tests start, so that no test waits for it.

python -m tests.servers.everything
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable

from tests.servers import chromium, flink_operator, java_project, kafka, prism, prometheus, sql
from tests.servers.flink import SCRIPT
from tests.servers.python_environment import environment_of


def _flink() -> None:
    subprocess.run([sys.executable, str(SCRIPT.with_name("flink_jars.py"))], check=True)


def main() -> None:
    """One after another, with the seconds that each takes."""
    os.environ.setdefault("MAVEN_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # a quarter less to compute
    installs: dict[str, Callable[[], object]] = {
        "Prism, fake-gcs-server and Pub/Sub": prism.prism,
        "Chromium": chromium.program,
        "Prometheus": prometheus.program,
        "Kafka": kafka.libraries,
        "Moto": functools.partial(environment_of, "moto"),
        "Flink": _flink,
        "Flink's operator": flink_operator.api,
        "Beam SQL": sql.jars,
        "deploy/java": java_project.class_path,
    }
    for name, install in installs.items():
        began = time.monotonic()
        install()
        print(f"{name} is installed: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
