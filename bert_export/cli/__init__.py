"""The command line: each command parses, makes one library call, and prints."""

from bert_export.cli.main import main

__all__ = ["main"]
