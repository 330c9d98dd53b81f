"""Programs that a peer's own environment runs: they import nothing of this project."""
