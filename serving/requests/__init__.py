"""From an HTTP request to requests of the engine's client, and back into the event loop. Knows no form of a body."""
