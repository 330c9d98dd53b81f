"""A process for each engine: its environment, what it prepared, and the two ends of the pipe."""
