"""Training in several processes: where they run, their group, and sharded parameters."""
