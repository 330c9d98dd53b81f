"""Zero-shot classification of texts by a served model of natural language inference."""

import asyncio
from collections.abc import Sequence
from functools import partial

from bert_runtime.inputs import SingleInput
from bert_runtime.zero_shot import ZeroShotClassification, ZeroShotClassifier
from bert_runtime.zero_shot.hypotheses import read_labels
from bert_serve.serving.caller import Caller
from bert_serve.serving.served_model import ServedModel

__all__ = ["classify_zero_shot"]


async def classify_zero_shot(
    served: ServedModel,
    texts: Sequence[SingleInput],
    labels: str | Sequence[str],
    caller: Caller | None = None,
    *,
    hypothesis_template: str,
    multi_label: bool,
) -> list[ZeroShotClassification]:
    """Return the result of each text, computed together with those of other callers.

    Args:
        served: the model.
        texts: the texts.
        labels: the candidate labels.
        caller: the request, whose connection is watched.
        hypothesis_template: see `ZeroShotClassifier`.
        multi_label: see `ZeroShotClassifier`.

    Raises:
        InputError: the model, a label or the template cannot be used, or names a text that cannot be processed.
        ServeError: the request cannot be answered now, or exceeds a limit, which counts pairs of a text and a label.
    """
    engine = served.engine  # one engine for tokenizing and computing, also if the bundle is replaced meanwhile
    candidate_labels = read_labels(labels)
    engine.limits.check_number(len(texts) * len(candidate_labels), "pairs of a text and a label")
    make: partial[ZeroShotClassifier] = partial(
        engine.zero_shot_classifier,
        candidate_labels,
        hypothesis_template=hypothesis_template,
        multi_label=multi_label,
    )
    with engine.reserve(texts, repeats=len(candidate_labels)) as reservation:
        classifier = await asyncio.to_thread(make)  # which tokenizes the hypotheses
        classifier.check_texts(encoded := await engine.encode(texts))
        pairs = await asyncio.to_thread(lambda: list(map(classifier.join, encoded)))
        outputs = await engine.outputs(pairs, caller, reservation)
    return list(map(classifier.decode, outputs))
