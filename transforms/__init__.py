"""Beam transforms: what reads prompts, asks the model and writes answers. `millrace` names what a user imports."""
