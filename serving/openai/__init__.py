"""OpenAI's routes for completions, conversations and vectors, and vLLM's for tokens."""
