"""`python -m bert_export.cli` is `bert-export`."""

from bert_export.__main__ import main

main()
