"""Outputs held to a constraint: its grammar, and what of the grammar a sequence has behind it."""
