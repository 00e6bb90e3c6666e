"""Every figure that the README quotes, one command each; the last line of each command is JSON."""
