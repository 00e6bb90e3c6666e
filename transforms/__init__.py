"""The PTransforms that a user imports."""
