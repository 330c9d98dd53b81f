"""`python -m bert_bench.cli` is `bert-bench`."""

from bert_bench.cli.main import main

main(prog_name="bert-bench")
