"""LoRA adapters by row: which are loaded, and what they add."""
