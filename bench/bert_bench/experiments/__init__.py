"""Experiments behind the numbers in docs/results, one module each: `python -m bert_bench.experiments.NAME --help`."""
