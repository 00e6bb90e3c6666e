"""Steps on a GPU: Triton kernels and captured graphs."""
