"""Beam transforms: what reads prompts, asks the model and writes answers. `millrace` names what a user imports."""

if __name__ != "millrace.transforms":
    raise ImportError("transforms is a part of the package millrace: import millrace.transforms")
