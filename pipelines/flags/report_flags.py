"""The flags of a job's report."""

from __future__ import annotations

from typing import Any


def add_report(group: Any) -> None:
    """Whether a job writes a page of what it came to, where, and at what prices."""
    group.add_argument(
        "--report",
        nargs="?",
        const=True,
        metavar="PATH",
        help="Write a page of what the job came to, an HTML file, local or gs://. Default: beside the output's files, "
        "as <output>.report.html; of a job that ends and is waited for.",
    )
    group.add_argument("--no-report", dest="report", action="store_false", default=None, help="Write no such page.")
    group.add_argument(
        "--prices",
        metavar="FILE",
        help="Prices as millrace plan takes them: with --machine_type the report tells what the job's time costs.",
    )
