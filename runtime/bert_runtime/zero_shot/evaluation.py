"""Zero-shot classification as a classification by the candidate labels, so that its metrics are the same."""

from collections.abc import Callable, Sequence

from bert_runtime.batching.streaming import CHUNK_SIZE
from bert_runtime.tasks import Outputs, TextClassification, TextInput
from bert_runtime.zero_shot.classifier import ZeroShotClassifier

__all__ = ["zero_shot_outputs", "zero_shot_task"]


def zero_shot_task(classifier: ZeroShotClassifier) -> TextClassification:
    """Return the task that a classifier does: one of the candidate labels for a text, or several."""
    problem_type = "multi_label" if classifier.judges_alone else "single_label"
    return TextClassification(labels=classifier.labels, problem_type=problem_type)


def zero_shot_outputs(
    classifier: ZeroShotClassifier, texts: Sequence[TextInput], progress: Callable[[int], None]
) -> list[Outputs]:
    """Return a logit of each candidate label for each text, as a model for `zero_shot_task` gives it.

    Args:
        classifier: the classifier.
        texts: texts, no pairs.
        progress: called with the number of texts that have been processed since the last call.
    """
    outputs = []
    for start in range(0, len(texts), CHUNK_SIZE):
        chunk = texts[start : start + CHUNK_SIZE]
        for text, result in zip(chunk, classifier([text.text for text in chunk]), strict=True):
            logits = classifier.label_logits(result.logits)
            outputs.append(Outputs(text, (), (logits,), classifier.model.tokenizer))
        progress(len(chunk))
    return outputs
