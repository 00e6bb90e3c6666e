#!/usr/bin/env python3
"""A Flink cluster on this machine, and the job server that takes Beam pipelines to it.

    deploy/flink/cluster.py up        job manager, two task managers of two slots each, their worker pools, job server
    deploy/flink/cluster.py status
    deploy/flink/cluster.py cancel    ends the jobs that run
    deploy/flink/cluster.py down

`up` fetches what it needs the first time (Maven, pip; Java 11 or 17), and starts what does not run: a task manager that
was killed is brought back. It is run by the Python in which millrace is installed; the pools start workers with that.
With `--embedded` the job server runs jobs itself, in a Flink inside of it. All listen on the loopback interface alone.
Of millrace this knows the command that starts a worker pool.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster_processes import Cluster, wait_until
from flink_commands import processes
from flink_jars import install

PORTS = {"rest": 8081, "rpc": 6123, "job": 8099, "artifact": 8098, "expansion": 8097, "workers": 50000}


def up(options: argparse.Namespace) -> None:
    """Start what does not run, and wait until all of it answers."""
    home = install()
    cluster = Cluster(options.folder)
    (cluster.folder / "logs").mkdir(parents=True, exist_ok=True)
    (cluster.folder / "tmp").mkdir(exist_ok=True)
    if not cluster.state:
        shape = {"task_managers": options.task_managers, "slots": options.slots, "embedded": options.embedded}
        ports = free_ports() if options.free_ports else PORTS
        cluster.state = {**shape, "ports": ports, "processes": {}}
        cluster.save()
    for name, command in processes(cluster, home):
        cluster.start(name, command)
    if not wait_until(lambda: not missing(cluster), options.within):
        absent = ", ".join(missing(cluster))
        raise SystemExit(f"not there after {options.within:.0f} s: {absent}; see {cluster.folder}/logs")
    status(options)


def down(options: argparse.Namespace) -> None:
    """End everything; only logs are left."""
    cluster = Cluster(options.folder)
    names = list(reversed(cluster.state.get("processes", {})))
    for name in names:
        cluster.end(name)
    for name in ("tmp", "conf", "checkpoints", "artifacts"):
        shutil.rmtree(cluster.folder / name, ignore_errors=True)
    cluster.path.unlink(missing_ok=True)
    print(f"stopped: {', '.join(names)}" if names else f"nothing was running that {cluster.folder} knows of")


def status(options: argparse.Namespace) -> None:
    """Print what runs, and the flags that take a job there."""
    cluster = Cluster(options.folder)
    if not cluster.state:
        print("nothing is running")
        return
    for name, known in cluster.state["processes"].items():
        print(f"{name:15} {'pid ' + str(known['pid']) if cluster.running(name) else 'is gone'}")
    workers = "localhost" if cluster.state["embedded"] else "workers"
    flags = f"--runner PortableRunner --job_endpoint localhost:{cluster.ports['job']}"
    print(f"jobs:  {flags} --environment_type EXTERNAL --environment_config {workers}:{cluster.ports['workers']}")
    if not cluster.state["embedded"]:
        print(f"Flink: http://localhost:{cluster.ports['rest']}")


def cancel(options: argparse.Namespace) -> None:
    """End the jobs that run. Asked by Flink's REST interface: Beam's job server lets go of a job, which goes on."""
    cluster = Cluster(options.folder)
    if not cluster.state or cluster.state["embedded"]:
        raise SystemExit("no cluster is running; an embedded Flink ends its jobs with `down`")
    jobs = running_jobs(cluster)
    for job in jobs:
        rest(cluster, f"jobs/{job}", "PATCH")
    if not wait_until(lambda: not running_jobs(cluster), options.within):
        raise SystemExit(f"still running after {options.within:.0f} s: {', '.join(running_jobs(cluster))}")
    print(f"cancelled: {', '.join(jobs)}" if jobs else "no job was running")


def running_jobs(cluster: Cluster) -> list[str]:
    """Their ids, as Flink has them."""
    ended = ("FINISHED", "CANCELED", "FAILED")
    return [job["id"] for job in rest(cluster, "jobs")["jobs"] if job["status"] not in ended]


def rest(cluster: Cluster, path: str, method: str = "GET") -> Any:
    """An answer of Flink's REST interface."""
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.ports['rest']}/{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def missing(cluster: Cluster) -> list[str]:
    """Names of the processes that do not answer yet."""
    gone = [name for name in cluster.state["processes"] if not cluster.running(name)]
    if gone:
        raise SystemExit(f"ended at its start: {', '.join(gone)}; see {cluster.folder}/logs")
    absent = [] if listens("127.0.0.1", cluster.ports["job"]) else ["job-server"]
    if not cluster.state["embedded"] and task_managers_known(cluster) < cluster.state["task_managers"]:
        absent.append("task managers")
    return absent


def task_managers_known(cluster: Cluster) -> int:
    """How many have told the job manager that they are there."""
    try:
        known = rest(cluster, "taskmanagers")["taskmanagers"]
    except (OSError, urllib.error.URLError, ValueError):
        return 0
    names = {f"task-manager-{number}" for number in range(1, cluster.state["task_managers"] + 1)}
    return len({each["id"] for each in known} & names)


def free_ports() -> dict[str, int]:
    """Ports of the loopback interface that nobody has now, below those that the kernel gives to connections."""
    ports = random.SystemRandom().sample(range(20_000, 32_000), 1000)
    free = (port for port in ports if _is_free(port))
    return {name: next(free) for name in PORTS}


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        return True
    return False


def listens(host: str, port: int) -> bool:
    """Whether someone accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def main() -> None:
    """Run the command line's command."""
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"up": up, "down": down, "status": status, "cancel": cancel}
    parser.add_argument("command", choices=list(commands))
    parser.add_argument("--folder", type=Path, default=Path("out/flink"), help="Logs, state. Default: out/flink.")
    parser.add_argument("--task_managers", type=int, default=2, metavar="N", help="Default: 2.")
    parser.add_argument("--slots", type=int, default=2, metavar="N", help="Of each task manager. Default: 2.")
    parser.add_argument("--embedded", action="store_true", help="Flink inside of the job server, and one pool.")
    parser.add_argument("--free_ports", action="store_true", help=f"Any ports instead of {PORTS}.")
    parser.add_argument(
        "--within", type=float, default=120.0, metavar="SECONDS", help="What `up` and `cancel` wait. Default: 120."
    )
    options = parser.parse_args()
    commands[options.command](options)


if __name__ == "__main__":
    main()
