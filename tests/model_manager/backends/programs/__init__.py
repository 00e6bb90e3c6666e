"""Programs that tests start in the environments of servers; they import nothing of ours."""
