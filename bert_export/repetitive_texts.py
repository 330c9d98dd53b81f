"""Make repetitive inputs: one word of the vocabulary, over and over.

In natural texts attention averages different values, so that its outputs stay small. Where all tokens are alike it
returns one value as it is, which lies outside the ranges of natural texts and was clipped: MiniLM's INT8 embedding of
256 commas had a cosine of 0.95 with FP32's, and of 0.86 when calibrated on BANKING77. With ranges measured on these
inputs, too, both are above 0.99 (`tests/export/quantization/test_repetitive_texts.py`).
"""

import numpy as np

from bert_export.calibration_texts import padded_batches, spread, valid_inputs
from bert_runtime.tasks import Task, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["repetitive_batches", "single_token_words"]

_PUNCTUATION = ("!", ",", "-", ")", "1")
"""Texts of one repeated character are mostly of these, of which a spread over the vocabulary finds few."""

_NUM_WORDS = 48
"""Words to repeat, each in a text of its own: up to 13,568 tokens (a judgement)."""

_MAX_REPETITIONS = 256
"""Maximum length of a text in words; the ranges hardly grow beyond (a judgement)."""


def repetitive_batches(task: Task, tokenizer: TextTokenizer) -> list[Batch]:
    """Return batches of inputs of the task that repeat one word each; none where the task accepts no such input."""
    count = min(_MAX_REPETITIONS, tokenizer.max_tokens)
    texts = [" ".join([word] * count) for word in [*_PUNCTUATION, *single_token_words(tokenizer, _NUM_WORDS)]]
    # One text at a time: tasks that read pairs would make them of different words.
    inputs = [item for text in texts for item in valid_inputs(task, tokenizer, task.sample_inputs([text]))]
    return padded_batches([windows[0] for windows in tokenizer.encode(task.prefixed(inputs))], tokenizer)


def single_token_words(tokenizer: TextTokenizer, count: int) -> list[str]:
    """Return up to `count` words that are one token each, more of them from the vocabulary's frequent beginning.

    The vocabulary decides the language. Ids grow with the square of the position: most vocabularies list tokens by
    falling frequency.
    """
    ids = np.unique((np.linspace(0, 1, 8 * count, endpoint=False) ** 2 * tokenizer.vocab_size).astype(np.int64))
    decoded = (tokenizer.decode([int(token_id)], skip_special_tokens=True).strip() for token_id in ids)
    words = [word for word in dict.fromkeys(decoded) if word]
    pairs = tokenizer.windows == "text_pair"  # a tokenizer that takes nothing else
    encoded = tokenizer.encode([TextInput(word, word if pairs else None) for word in words])
    tokens = [window.special_tokens_mask.count(0) for window, *_ in encoded]
    return spread([word for word, found in zip(words, tokens, strict=True) if found == 1 + pairs], count)
