"""Back end `endpoint`: requests go over HTTP to servers that somebody else runs. `engine.py` is its Engine."""
