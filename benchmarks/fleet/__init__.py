"""A simulated fleet of worker machines: their engines, how rows come to them, and how machines start and die."""
