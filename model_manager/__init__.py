"""One model manager a machine, and the inference processes it keeps: under this package a folder is a process."""

if __name__ != "millrace.model_manager":
    raise ImportError("model_manager is a part of the package millrace: import millrace.model_manager")
