"""The `bert-bench` command line: each command parses, calls the library once, and prints."""

from bert_bench.cli.main import main

__all__ = ["main"]
