"""Bundles on the Hugging Face hub."""

from bert_runtime.hub.transfer import pull, push

__all__ = ["pull", "push"]
