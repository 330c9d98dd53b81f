"""Sizes of the work of a request: characters, tokens, answers."""

from collections.abc import Sequence

from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.inputs import SingleInput, texts_of
from bert_runtime.tasks import FillMask, Outputs, QuestionAnswering, Task

__all__ = ["count_tokens", "num_answers", "num_candidates", "num_characters"]


def num_characters(inputs: Sequence[SingleInput]) -> int:
    """Count the characters of inputs, as far as they are texts."""
    return sum(len(text) for value in inputs for text in texts_of(value))


def count_tokens(outputs: Sequence[Outputs]) -> int:
    """Count the tokens that were read, special tokens included."""
    return sum(len(window) for output in outputs for window in output.encodings)


def num_candidates(inputs: Sequence[EncodedInput], task: Task) -> int:
    """Count the candidates that decoding weighs and makes objects of, where options say how many; else 0."""
    windows = [window for item in inputs for window in item.windows]
    if isinstance(task, FillMask):
        return task.top_k * sum(map(task.num_vectors, windows)) + len(task.candidates) * len(inputs)
    return task.n_best * len(windows) if isinstance(task, QuestionAnswering) else 0


def num_answers(outputs: Sequence[Outputs], task: Task) -> int:
    """Count what is decoded: windows, masks and tokens, and for each as many answers as were asked for."""
    found = sum(task.num_vectors(window) for output in outputs for window in output.encodings)
    return found * int(getattr(task, "top_k", 1) or 1)
