"""`millrace plan`: what a job will take, reckoned before it runs."""
