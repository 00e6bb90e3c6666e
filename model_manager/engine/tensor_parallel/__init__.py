"""One model divided among processes."""
