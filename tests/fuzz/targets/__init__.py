"""One module a target: each has a `TARGET`. The product is imported here alone, so that its coverage can be counted."""
