"""The subcommands of `millrace`."""
