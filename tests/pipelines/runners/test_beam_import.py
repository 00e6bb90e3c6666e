"""What a command that runs a job leaves out of Beam's import, in a process that has imported nothing."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from millrace.pipelines.runners.beam_import import left_out, without_unused_clients
from millrace.pipelines.cli import dispatch

for flags in ("gs://b/p.txt", "--input pubsub:p", "--runner DataflowRunner", "--runner=corp.Ours", "--schema a:B"):
    with without_unused_clients(["run", *flags.split()]):
        print([name for name, module in sys.modules.items() if module is None])
assert dispatch(["run", "--nonsense"]) == 2
import apache_beam as beam
left = ("pandas", "pymongo", "IPython", "google.cloud.dataflow", "google.cloud.storage", "apache_beam.io.gcp.bigquery")
print([name for name in left if name in sys.modules])
print("pandas" in left_out(), "google.cloud.dataflow" in left_out())
import pandas, pymongo, google.cloud.dataflow
print("pandas" in left_out(), "google.cloud.dataflow" in left_out())
from apache_beam.io.gcp.bigquery import ReadFromBigQuery
from apache_beam.io.gcp.pubsub import ReadFromPubSub
print(bool(beam.io.ReadFromParquet))
"""


def test_clients_that_no_flag_names_are_not_imported_and_can_be_later() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    *hidden, imported, before, after, has_sources = ended.stdout.splitlines()
    assert ["google.cloud.dataflow" in each for each in hidden] == [True, True, False, False, False]
    assert ["google.cloud.pubsub" in each for each in hidden] == [True, False, True, False, False]
    assert ["pandas" in each for each in hidden] == [True, True, True, False, False]
    assert not any("google.cloud.storage" in each for each in hidden)
    assert (imported, has_sources) == ("[]", "True")
    assert (before, after) == ("True True", "False False"), "which workers go without"
    assert ended.stderr == "millrace: unknown flag --nonsense: --help lists all\n"
