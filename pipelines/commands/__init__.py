"""The subcommands of `millrace`, a file each."""
