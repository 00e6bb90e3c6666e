"""Jobs whose processes are killed and stopped at random: what is lost, doubled, changed, slower or left behind."""
