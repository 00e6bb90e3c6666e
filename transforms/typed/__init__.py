"""Types as what a model is to answer: their shape, grammar, prompt, and the way from an answer's text to a value.

Knows neither engines nor files; `transforms/extract.py` is the transform that stands on it.
"""
