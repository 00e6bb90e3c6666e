"""Metrics in Prometheus's text format, under the names that vLLM gives them where they mean the same."""
