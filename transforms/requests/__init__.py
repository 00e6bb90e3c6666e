"""The step that sends elements to a model and emits the results, and its two ways of waiting."""
