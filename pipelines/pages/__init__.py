"""HTML pages of outputs: files of rows, texts made harmless, sketches, plots, templates. Knows no job and no server."""
