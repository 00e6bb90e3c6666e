"""Back end `endpoint`: requests go over HTTP or gRPC to servers that somebody else runs. `engine.py` is its Engine."""
