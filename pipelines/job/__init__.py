"""One job, from its graph to its summary."""
