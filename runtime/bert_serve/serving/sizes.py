"""Sizes of the work of a request: characters, tokens, answers."""

from collections.abc import Mapping, Sequence

from bert_runtime.inputs import SingleInput
from bert_runtime.tasks import FillMask, Outputs, QuestionAnswering, Task

__all__ = ["count_tokens", "num_answers", "num_candidates", "num_characters"]


def num_characters(inputs: Sequence[SingleInput]) -> int:
    """Count the characters of inputs, as far as they are texts."""
    texts: list[object] = []
    for value in inputs:
        texts += [value] if isinstance(value, str) else value.values() if isinstance(value, Mapping) else value
    return sum(len(text) for text in texts if isinstance(text, str))


def count_tokens(outputs: Sequence[Outputs]) -> int:
    """Count the tokens that were read, special tokens included."""
    return sum(len(window) for output in outputs for window in output.encodings)


def num_candidates(outputs: Sequence[Outputs], task: Task) -> int:
    """Count the candidates that decoding weighs and makes objects of, where options say how many; else 0."""
    if isinstance(task, FillMask):
        return num_answers(outputs, task) + len(outputs) * len(task.candidates)
    if isinstance(task, QuestionAnswering):
        return task.n_best * sum(len(output.encodings) for output in outputs)
    return 0


def num_answers(outputs: Sequence[Outputs], task: Task) -> int:
    """Count what is decoded: windows, masks and tokens, and for each as many answers as were asked for."""
    found = sum(task.num_vectors(window) for output in outputs for window in output.encodings)
    return found * int(getattr(task, "top_k", 1) or 1)
