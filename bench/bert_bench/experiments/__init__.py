"""Experiments behind the numbers in the README, one module each: `python -m bert_bench.experiments.NAME --help`."""
