"""Files to prompts."""
