"""Connections, bodies and replies of HTTP, and who asks. Knows no model."""
