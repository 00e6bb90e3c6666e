"""What others write, changed at random: messages, rows, constraints, templates, checkpoints. See __main__.py."""
