"""Parts of transformers' models that are replaced or changed before they run."""
