"""Transformers' model code over the paged KV cache."""
