"""Runnable jobs: flags in, a Beam graph out."""
