"""The command line of the comparison: each command parses, makes one library call, and prints."""

from bert_bench.cli.main import main

__all__ = ["main"]
