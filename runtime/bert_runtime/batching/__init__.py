"""Batches of similar length: how sequences are divided, run, and answered one by one."""

from bert_runtime.batching.batches import length_sorted_batches, parallel_batches

__all__ = ["length_sorted_batches", "parallel_batches"]
