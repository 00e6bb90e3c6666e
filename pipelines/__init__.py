"""Runnable jobs: flags in, a Beam graph out."""

if __name__ != "millrace.pipelines":
    raise ImportError("pipelines is a part of the package millrace: import millrace.pipelines")
