"""Prompts to try, and the embedded model they are tried on."""
