"""The transforms for rows with a schema, which Beam YAML and other languages use."""
