"""Files on any Beam file system: names, formats, bytes. Knows neither prompts nor completions."""
