"""The embedded model: the data, the tokenizer, the training and the evaluation of `millrace-tiny`.

Knows nothing of the pipeline or the engine: what it leaves behind is a folder that any Llama runtime can load.
"""
