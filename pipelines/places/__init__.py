"""What `--input`, `--output` and `--dead_letters` name."""
