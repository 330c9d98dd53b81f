"""Commands that this package adds to `bert-export`."""
