"""Weights and KV cache in few bits: formats, rounding, and the checkpoints that come so."""
