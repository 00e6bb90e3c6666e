"""One model manager a machine, and the inference processes it keeps: under this package a folder is a process."""
