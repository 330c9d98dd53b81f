"""Commands that this package adds to `bert-export`, by entry points."""
