"""Labelled data that decides whether INT8 may be the default: a file of examples, or a retrieval data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from bert_export.errors import ExportError
from bert_runtime.evaluation import build_examples, check_metrics
from bert_runtime.records import read_records
from bert_runtime.records.retrieval import RetrievalData, read_retrieval_folder
from bert_runtime.retrieval import run_of_vectors, score_run
from bert_runtime.tasks import Example, Outputs, SentenceEmbedding, Task, TextInput
from bert_runtime.tasks.values import PromptedText, stack_single_window
from bert_runtime.tokenization import TextTokenizer

__all__ = ["LabelledData", "LabelledFile", "LabelledRetrieval", "read_labelled"]


class LabelledData(Protocol):
    """Inputs with labels, and the metrics of outputs on them."""

    @property
    def path(self) -> Path:
        """The file with the labels."""

    @property
    def name(self) -> str:
        """Name of the data in the manifest."""

    @property
    def inputs(self) -> Sequence[TextInput]:
        """Inputs of the model."""

    @property
    def num_examples(self) -> int:
        """Number of labelled examples, or of queries."""

    def score(self, task: Task, outputs: Sequence[Outputs]) -> dict[str, float]:
        """Return the metrics of a model's outputs for `inputs`; raise `DataError` where one is undefined."""


class LabelledFile(NamedTuple):
    """A labelled file and its examples."""

    path: Path
    examples: list[Example]

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def inputs(self) -> list[TextInput]:
        """The inputs of all examples."""
        return [item for example in self.examples for item in example.inputs]

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return len(self.examples)

    def score(self, task: Task, outputs: Sequence[Outputs]) -> dict[str, float]:
        """Return the task's metrics."""
        return check_metrics(task.score(outputs, self.examples), self.path)


class LabelledRetrieval(NamedTuple):
    """A retrieval data set: queries, then documents."""

    name: str
    data: RetrievalData
    inputs: Sequence[TextInput]
    """The queries and the documents, with their prompts."""

    @property
    def path(self) -> Path:
        """The file of judgements."""
        return self.data.path

    @property
    def num_examples(self) -> int:
        """The number of queries."""
        return len(self.data.queries)

    def score(self, task: Task, outputs: Sequence[Outputs]) -> dict[str, float]:
        """Return nDCG, MRR and recall of an exact search."""
        assert isinstance(task, SentenceEmbedding), "as read_labelled has checked"
        vectors = stack_single_window(outputs)
        queries, documents = np.split(vectors, [len(self.data.queries)])
        return score_run(run_of_vectors(queries, [documents], self.data, task.similarity), self.data)


def read_labelled(
    evaluate: str | Path | None, columns: Mapping[str, str] | None, task: Task, tokenizer: TextTokenizer
) -> LabelledData | None:
    """Read the labelled file or the retrieval folder, if there is one.

    Raises:
        DataError: it is missing or malformed, or a row does not fit the task.
        ExportError: it is a folder, and the task does not retrieve.
    """
    if evaluate is None:
        return None
    path = Path(evaluate)
    if not path.is_dir():
        return LabelledFile(path, build_examples(task, tokenizer, read_records(evaluate, columns)))
    if not isinstance(task, SentenceEmbedding):
        raise ExportError(
            f"{path}: expected a labelled file for {task.name}, found a folder; retrieval is not its task"
        )
    data = read_retrieval_folder(path)
    inputs = [
        PromptedText(prompt + text)
        for prompt, texts in zip(task.ranking_prompts, (data.queries, data.corpus), strict=True)
        for text in texts.values()
    ]
    return LabelledRetrieval(path.resolve().name, data, inputs)
