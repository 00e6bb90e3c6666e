"""What runs in an inference process: it owns the device and runs the continuous-batching loop."""
