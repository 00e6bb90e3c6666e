"""llama.cpp in the inference process: its native server, which batches continuously, over GGUF files."""
