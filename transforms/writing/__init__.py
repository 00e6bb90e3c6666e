"""Completions, rows and dead letters to files and tables."""
