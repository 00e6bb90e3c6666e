"""Python imports this at the start of each process of a job; see faults.py and seam_tokens.py."""

from benchmarks.storms import seam_faults, seam_tokens

seam_faults.install()
seam_tokens.install()
