"""A decoder's step on a CPU as one compiled program, and attention over the pages where they lie."""
