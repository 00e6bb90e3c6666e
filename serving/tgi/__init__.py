"""The routes of Hugging Face's Text Generation Inference: `/generate`, `/generate_stream` and `/info`.

Its clients send to the base address itself too, which is `/generate` or, with `stream`, `/generate_stream`.
Source: https://huggingface.github.io/text-generation-inference
"""
