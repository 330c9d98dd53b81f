"""Training in several processes: their placement, their process group, and sharded parameters."""
