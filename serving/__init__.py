"""The HTTP server: OpenAI's API in front of this machine's engine. One process without torch and without Beam.

a connection ─► app (routes, keys) ─► a body, read and checked ─► Exchange ─► Submitter ─► EngineClient
SSE or JSON  ◄─ the answer's form   ◄─ deltas, ends             ◄─ Crossing  ◄─ the client's own thread
"""

if __name__ != "millrace.serving":
    raise ImportError("serving is a part of the package millrace: import millrace.serving")
