"""What runs in the one manager process of a machine: routing requests, starting and watching engines."""
