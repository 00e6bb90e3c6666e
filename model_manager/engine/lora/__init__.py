"""Adapters by row: which are loaded, and what they add."""
