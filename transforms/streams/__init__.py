"""Prompts that keep coming, and results that keep going: folders that are watched, files by window, brokers."""
