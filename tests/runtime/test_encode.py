"""`Model.encode`: embeddings as one array; columns of tables in place of lists; truncation that results show."""

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bert_runtime
from bert_runtime import Batch, Classification, Embedding, InputError, Model, Regression, SentenceEmbedding, load
from bert_runtime.cpu.session import Session
from bert_runtime.embedding import VectorShape
from bert_runtime.numerics import FloatArray

TEXTS = ["hello", "where is my card?", "", "I lost my money at the bank", "bye", "card " * 100] * 100


@pytest.fixture(scope="module")
def model(embedding_bundle: Path) -> Model:
    return load(embedding_bundle, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def classifier(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32", threads=1)


def stacked(results: list[Any]) -> np.ndarray:
    assert all(isinstance(result, Embedding) for result in results)
    return np.stack([result.vector for result in results])


def test_vectors_are_those_of_the_results(model: Model) -> None:
    vectors = model.encode(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((600, 32), np.float32)
    assert vectors.tolist() == stacked(model(TEXTS)).tolist()


def test_no_texts_give_no_vectors(model: Model) -> None:
    assert model.encode([]).shape == (0, 32)


def test_batches_of_another_size_give_the_same_vectors(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.encode(TEXTS, max_batch_tokens=16) == pytest.approx(model.encode(TEXTS), abs=1e-5)
    assert model.max_batch_tokens > 16
    sizes: list[int] = []
    run = Session.run

    def recorded(self: Session, batch: Batch) -> FloatArray:
        sizes.append(batch.input_ids.size)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", recorded)
    whole = copy(model)
    whole.whole_batch_tokens = 1024
    assert len(whole.encode(TEXTS[:5])) == 5
    assert len(sizes) == 1
    whole.encode(TEXTS[:5], max_batch_tokens=16)
    assert len(sizes) > 2
    assert max(sizes[1:]) <= 16
    assert whole.outputs([]) == []
    with pytest.raises(InputError, match="max_batch_tokens must be a whole number in 1 to 1,048,576, found 0"):
        model.encode(TEXTS, max_batch_tokens=0)


def test_graphs_that_cannot_read_padding_read_each_text_alone(model: Model) -> None:
    class Graph:
        threads, device_name = 1, "made by hand"

        def run(self, batch: Batch) -> np.ndarray:
            assert batch.input_ids.shape[0] == 1
            return np.ones((1, 3), dtype=np.float32)

    variant: Any = SimpleNamespace(padding="unmasked", functions={})
    unmasked = Model(SentenceEmbedding(dimensions=3), model.tokenizer, Graph(), max_batch_tokens=1, variant=variant)
    assert unmasked.encode(["hello", "where is my card?"], max_batch_tokens=1024).shape == (2, 3)


def test_fewer_dimensions_are_normalized_again(model: Model) -> None:
    found, whole = model.encode(TEXTS[:4], dimensions=8), model.encode(TEXTS[:4])[:, :8]
    assert found == pytest.approx(whole / np.linalg.norm(whole, axis=1, keepdims=True), abs=1e-6)
    for dimensions in (0, 33, 2.5):
        with pytest.raises(InputError, match=f"dimensions must lie in 1 to 32, found {dimensions}"):
            model.encode(TEXTS, dimensions=dimensions)  # type: ignore[arg-type]


def test_normalization_that_the_graph_does_cannot_be_undone(model: Model) -> None:
    assert model.encode(TEXTS[:4], normalize=True).tolist() == model.encode(TEXTS[:4]).tolist()
    with pytest.raises(InputError, match="normalize=False is not possible: the graph of this bundle normalizes"):
        model.encode(TEXTS, normalize=False)
    with pytest.raises(InputError, match="normalize must be true or false, found 'no'"):
        model.encode(TEXTS, normalize="no")  # type: ignore[arg-type]


def test_vectors_are_normalized_where_the_graph_does_not(embedding_bundle: Path) -> None:
    class Graph:
        threads, device_name = 1, "made by hand"

        def run(self, batch: Batch) -> np.ndarray:
            return np.array([[3, 4, 12]] * len(batch.input_ids), dtype=np.float32)

    tokenizer = load(embedding_bundle, precision="fp32").tokenizer
    raw = Model(SentenceEmbedding(dimensions=3, normalize=False), tokenizer, Graph())
    assert raw.encode(["a", "b"]).tolist() == [[3, 4, 12]] * 2
    assert raw.encode(["a"], normalize=False, dimensions=2).tolist() == [[3, 4]]
    assert raw.encode(["a"], normalize=True, dimensions=2)[0] == pytest.approx([0.6, 0.8])


def test_ranges_of_vectors_that_are_not_normalized_are_for_these_alone(embedding_bundle: Path) -> None:
    task = SentenceEmbedding(dimensions=3, normalize=False, ranges=((-20.0,) * 3, (20.0,) * 3))
    VectorShape.of(task, embedding_precision="int8")
    with pytest.raises(InputError, match="ranges are those of vectors that are not normalized"):
        VectorShape.of(task, normalize=True, embedding_precision="int8")
    given = VectorShape.of(task, normalize=True, embedding_precision="int8", ranges=[[-1.0] * 3, [1.0] * 3])
    assert given.apply(np.array([[3, 4, 12]], np.float32)).tolist() == [[28, 38, 117]]


def test_other_tasks_have_no_vectors(classifier: Model) -> None:
    with pytest.raises(InputError, match="encode needs a model for sentence-embedding, found one for text-classif"):
        classifier.encode(["hello"])


@pytest.mark.parametrize("texts", ["hello", ("hello", "bye"), {"text": "hello"}, iter(["hello"]), None], ids=type)
def test_one_text_is_refused(model: Model, texts: Any) -> None:
    with pytest.raises(InputError, match=f"found {type(texts).__name__}"):
        model.encode(texts)


def test_errors_name_the_index_of_the_text(model: Model) -> None:
    with pytest.raises(InputError, match=r"^input 520: .* found a missing value \(NaN\)"):
        model.encode([*TEXTS[:520], float("nan")])  # type: ignore[list-item]


def test_progress_is_counted_on_stderr(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.encode(TEXTS, show_progress=True)
    assert capsys.readouterr().err.endswith("\rencoding: 600 of 600 texts\n")
    model.encode(TEXTS)
    assert capsys.readouterr().err == ""


class Column:
    """A column of a library that nobody has heard of."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)


def columns(values: list[Any]) -> Iterator[Any]:
    """Yield the values as columns of the libraries that are installed."""
    yield Column(values)
    yield np.array(values, dtype=object)
    yield np.array(values)
    pandas = pytest.importorskip("pandas")
    yield pandas.Series(values, index=range(len(values), 0, -1))
    yield pandas.Series(values, dtype="string")
    yield pandas.Series(values).astype("category")
    pyarrow = pytest.importorskip("pyarrow")
    yield pyarrow.array(values)
    yield pyarrow.chunked_array([values[:2], values[2:]])
    yield pyarrow.array(values).dictionary_encode()


def test_columns_are_accepted_where_lists_are(model: Model, classifier: Model) -> None:
    texts = TEXTS[:5]
    expected, labels = model.encode(texts).tolist(), [result.to_dict() for result in classifier(texts)]
    for column in columns(texts):
        assert model.encode(column).tolist() == expected, type(column)
        assert [result.to_dict() for result in classifier(column)] == labels, type(column)
        assert [result.to_dict() for result in classifier.stream(column)] == labels, type(column)


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_missing_values_of_columns_are_named(classifier: Model, library: str) -> None:
    module = pytest.importorskip(library)
    if library == "pyarrow":
        found = {"found None": module.array(["a", None])}
    else:
        found = {
            r"found a missing value \(NaN\)": module.Series(["a", float("nan")], dtype=object),
            r"found a missing value \(<NA>\)": module.Series(["a", None], dtype="string"),
        }
    for message, column in found.items():
        with pytest.raises(InputError, match=f"^input 1: .*{message}"):
            classifier(column)


def test_tables_are_refused(classifier: Model) -> None:
    """Iterating over a frame yields the names of its columns."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="found DataFrame of 2 dimensions; give one column of it"):
        classifier(pandas.DataFrame({"text": ["a"]}))


@pytest.mark.parametrize(
    ("value", "truncated"),
    [
        ("card " * 62, False),
        ("card " * 62 + " \t" * 10_000, False),
        ("card " * 63, True),
        ("card " * 100_000, True),
        (("card " * 60, "hello"), False),
        (("card " * 61, "hello"), True),
        (("card " * 50_000, "hello " * 50_000), True),
        ("", False),
    ],
    ids=lambda value: f"{len(value)}" if isinstance(value, str | tuple) else None,
)
def test_truncation_shows_in_the_result(classifier: Model, value: Any, truncated: bool) -> None:
    for result in (classifier(value), classifier(["hello", value])[1]):
        assert isinstance(result, Classification)
        assert result.truncated is truncated
        assert result.to_dict() == {"label": result.label, "score": result.score} | (
            {"truncated": True} if truncated else {}
        )


def test_embeddings_show_truncation(model: Model) -> None:
    short, long = model(["hello", "card " * 100])
    assert (short.truncated, long.truncated) == (False, True)
    assert list(long.to_dict()) == ["embedding", "truncated"]


def test_a_regression_of_one_number_has_a_score() -> None:
    one = Regression(np.array([3.5], dtype=np.float32), ("similarity",))
    assert one.score == 3.5
    assert one.to_dict() == {"label": "similarity", "score": 3.5}
    with pytest.raises(AttributeError, match="expected a model of one number, found 2: read them from values"):
        _ = Regression(np.zeros(2, np.float32), ("a", "b")).score


def test_the_release_is_known() -> None:
    from importlib.metadata import version

    assert bert_runtime.__version__ == version("bert-export")
    with pytest.raises(AttributeError, match="has no attribute '__release__'"):
        _ = bert_runtime.__release__  # type: ignore[attr-defined]
