"""`python -m millrace`: the `millrace` command, for where its script is not on PATH."""

from .pipelines.cli import main

if __name__ == "__main__":
    main()
