"""Jobs on Google Cloud Dataflow: what they ask of its workers, how they are submitted, and their templates."""
