"""From a model's folder to a runner that can execute steps."""
