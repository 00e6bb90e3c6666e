"""The report of a job: one HTML file beside its output, made of the summary's counts and a pass over the output."""
