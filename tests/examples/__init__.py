"""The tests of the examples."""
