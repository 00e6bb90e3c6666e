"""From logits to one token for each row, by its own parameters and random numbers."""
