"""Who computes how many tokens in the next step, and which blocks hold them. Knows counts and ids."""
