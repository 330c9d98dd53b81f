"""Results of `bert-export predict` as lines of JSON."""

import pytest

from bert_export.cli.predict_output import json_line
from bert_runtime.errors import DataError
from bert_runtime.tasks.reranking import Relevance


def test_numbers_that_json_lacks_are_an_error() -> None:
    assert json_line(Relevance(0.5, 0.0)) == '{"score": 0.5, "logit": 0.0}'
    with pytest.raises(DataError, match="found NaN or infinity in the model's output"):
        json_line(Relevance(float("nan"), float("nan")))
