"""Command-line flags, parsed once into frozen settings."""
