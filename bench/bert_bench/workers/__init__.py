"""Worker processes: one per engine, with its environment, its artifacts and the protocol of requests."""
