"""`millrace view`: outputs as pages, served to this machine alone, or written as one file."""
