"""Other engines in the inference process. Each is an `Engine` of `engine/interface.py`."""
