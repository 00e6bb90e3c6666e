"""Outputs that must meet a constraint: compiled grammars, masks of allowed tokens, each sequence's state."""
