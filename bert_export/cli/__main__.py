"""`python -m bert_export.cli` is `bert-export`."""

from bert_export.cli.main import main

main(prog_name="bert-export")
