"""Back end `server`: the inference process starts a server, sends over HTTP, and ends it. `engine.py` is its Engine."""
