"""What flows between the transforms: prompts, completions, dead letters, task results; and their metrics."""
