"""Runners and their worker processes."""
