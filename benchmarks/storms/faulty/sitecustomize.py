"""Python imports this at the start of each process of a job with a fault; see faults.py."""

from benchmarks.storms import seam_faults

seam_faults.install()
