"""Guesses tokens ahead, and keeps those that the model would have sampled."""
