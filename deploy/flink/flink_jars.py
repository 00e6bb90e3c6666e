"""The jars of Flink and of Beam's job server, fetched once: by Maven (pom.xml) and pip.

It does not know what is run of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

FLINK = "1.19.3"
BEAM = "2.62.0"
"""Version of Beam's job server, as in pom.xml. The Python SDK may be newer: both speak Beam's portable protocols."""
HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("MILLRACE_SERVERS", Path.home() / ".cache" / "millrace" / "servers"))


def install() -> Path:
    """The folder with `job-server/*.jar` and `flink/*.jar`, filled the first time."""
    home = HOME / f"flink-{FLINK}-beam-{BEAM}"
    HOME.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            unfinished = home.with_name(f"{home.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            print(f"fetching Flink {FLINK} and Beam's job server {BEAM} into {home} (once)", flush=True)
            fetch_job_server(unfinished / "job-server")
            fetch_flink(unfinished)
            unfinished.rename(home)
    return home


def fetch_job_server(folder: Path) -> None:
    """Beam's runner for Flink with all that it stands on, by Maven."""
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *goal], check=True)


def fetch_flink(folder: Path) -> None:
    """Flink's jars as PyPI has them: the distribution's jars, without its scripts."""
    target = folder / "pip"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), f"apache-flink-libraries=={FLINK}"], check=True)
    (folder / "flink").mkdir()
    for jar in (target / "pyflink" / "lib").glob("*.jar"):
        if not jar.name.startswith("flink-table"):  # SQL's, 100 MB of them
            jar.rename(folder / "flink" / jar.name)
    shutil.rmtree(target)


if __name__ == "__main__":
    install()
