"""Which client answers in a worker process, and which model it serves."""
