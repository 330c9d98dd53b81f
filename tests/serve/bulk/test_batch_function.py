"""`bert_serve.batch_function`: Arrow and pandas tables in, the same with answers out, in any process."""

import multiprocessing
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import bert_serve
from bert_runtime import BundleError, DataError, InputError, Manifest, MissingExtraError, load
from bert_runtime.plan import Plan, write_tuning
from bert_serve import batch_function
from bert_serve.bulk.batch_function import BatchFunction

from ...conftest import CopyBundle
from ...task_bundles import TaskBundles

TEXTS = ["hello there", None, "where is my card?"]


@pytest.fixture(scope="module")
def expected(classifier_bundle: Path) -> list[dict[str, Any]]:
    """The JSON values of the answers to `TEXTS`."""
    return [answer.to_dict() for answer in load(classifier_bundle)(TEXTS, on_error="return")]  # type: ignore[arg-type]


@pytest.fixture
def classify(classifier_bundle: Path) -> BatchFunction:
    return batch_function(classifier_bundle)


def check(found: dict[str, list[Any]], expected: list[dict[str, Any]]) -> None:
    assert found["label"] == [answer.get("label") for answer in expected]
    assert found["error"] == [answer.get("error") for answer in expected]
    assert [score is None for score in found["score"]] == ["score" not in answer for answer in expected]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_arrow_tables_keep_their_class_and_columns(
    classify: BatchFunction, expected: list[dict[str, Any]], kind: pa.DataType
) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "text": pa.array(TEXTS).cast(kind)})
    for table in (batch, pa.Table.from_batches([batch, batch])):
        answered = classify(table)
        assert type(answered) is type(table)
        assert answered.schema == classify.output_schema(table.schema)
        assert answered.schema.names == ["id", "text", "label", "score", "truncated", "error"]
        assert answered.column("id").to_pylist() == table.column("id").to_pylist()
        check(answered.to_pydict(), expected * (len(table) // 3))


def test_columns_of_texts_give_the_answers_alone(classify: BatchFunction, expected: list[dict[str, Any]]) -> None:
    texts = pa.array(TEXTS)
    assert classify(texts).type == pa.struct(classify.fields)
    for column in (texts, pa.chunked_array([texts[:1], texts[1:]])):
        check(pa.Table.from_struct_array(classify(column)).to_pydict(), expected)


def test_pandas_keeps_the_index(classify: BatchFunction, expected: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame({"text": TEXTS, "n": [1.5, 2.5, 3.5]}, index=[7, 3, 5])
    answered = classify(frame)
    assert answered.index.tolist() == [7, 3, 5]
    assert answered["n"].tolist() == [1.5, 2.5, 3.5]
    assert answered["label"].tolist()[::2] == [answer["label"] for answer in expected[::2]]
    assert "None" in answered["error"][3] or "missing" in answered["error"][3]
    assert classify(frame["text"]).columns.tolist() == ["label", "score", "truncated", "error"]


def test_embeddings_are_lists_of_fixed_size(embedding_bundle: Path) -> None:
    embed = batch_function(embedding_bundle, precision="fp32")
    answered = embed(pa.table({"text": TEXTS}))
    assert answered.schema.field("embedding").type == pa.list_(pa.float32(), 32)
    vectors = answered["embedding"].to_pylist()
    assert vectors[1] is None
    model = load(embedding_bundle, precision="fp32")
    np.testing.assert_allclose(vectors[::2], model.encode([TEXTS[0], TEXTS[2]]), atol=1e-6)  # type: ignore[list-item]
    frame = embed(pd.DataFrame({"text": TEXTS}))
    assert frame["embedding"][0].dtype == np.float32


def test_token_vectors_in_spark_have_no_fixed_size(task_bundles: TaskBundles) -> None:
    """Spark reads no lists of fixed size, also within lists."""
    function = batch_function(task_bundles["feature-extraction"])
    (answered,) = function.map_in_spark([pa.RecordBatch.from_pydict({"text": ["hello"]})])
    assert answered.schema.field("vectors").type == pa.list_(pa.list_(pa.float32()))
    assert answered.to_pydict() == function(pa.table({"text": ["hello"]})).to_pydict()


def test_rows_that_are_answered_together_are_bounded(
    task_bundles: TaskBundles, classify: BatchFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert classify.max_rows == 4096
    function = batch_function(bundle := task_bundles["feature-extraction"])
    manifest = Manifest.read(bundle)
    text_bytes = 4 * manifest.task.output_width * manifest.max_tokens  # type: ignore[operator]
    for limit, rows in ((3 * text_bytes + 1, 3), (1, 1), (1 << 40, 4096)):
        monkeypatch.setattr("bert_serve.bulk.batch_function._MAX_ANSWER_BYTES", limit)
        assert function.max_rows == rows
    fillings = batch_function(bundle := task_bundles["fill-mask"])
    (*_, vocabulary) = Manifest.read(bundle).output.axes
    monkeypatch.setattr("bert_serve.bulk.batch_function._MAX_ANSWER_BYTES", 3 * 4 * int(vocabulary) + 1)
    assert fillings.max_rows == 3


def test_empty_tables_have_the_same_schema(classify: BatchFunction) -> None:
    empty = classify(pa.table({"text": pa.array([], pa.string())}))
    assert (len(empty), empty.schema) == (0, classify(pa.table({"text": TEXTS})).schema)
    assert len(classify(pd.DataFrame({"text": pd.Series([], dtype=object)}))) == 0


def test_pairs_need_both_texts(classifier_bundle: Path) -> None:
    function = batch_function(classifier_bundle, column="a", pair_column="b", keep=[], precision="fp32")
    answered = function(pa.table({"a": ["hello", "bye"], "b": ["my card", None]}))
    (single,) = load(classifier_bundle, precision="fp32")([("hello", "my card")])
    assert answered["score"][0].as_py() == pytest.approx(single.to_dict()["score"], abs=1e-6)
    assert answered["label"][1].as_py() is None
    assert answered["error"][1].as_py().startswith("expected a text, a tuple of two texts")


def test_bad_rows_may_raise(classifier_bundle: Path) -> None:
    function = batch_function(classifier_bundle, on_error="raise")
    assert function(pa.table({"text": ["hello"]})).schema.names == ["text", "label", "score", "truncated"]
    with pytest.raises(InputError, match="input 1: "):
        function(pa.table({"text": TEXTS}))


def test_kept_columns_and_prefix(classifier_bundle: Path) -> None:
    table = pa.table({"id": [1], "text": ["hello"], "label": ["gold"]})
    with pytest.raises(DataError, match="the answers have the columns 'label', and so has the table"):
        batch_function(classifier_bundle)(table)
    answered = batch_function(classifier_bundle, keep=["label", "id"], prefix="model_")(table)
    assert answered.schema.names == ["label", "id", "model_label", "model_score", "model_truncated", "model_error"]
    with pytest.raises(DataError, match="found no 'key' among 'id', 'text', 'label'"):
        batch_function(classifier_bundle, keep=["key"])(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"sentence": ["a"]}), "expected a column 'text', found 'sentence'; is it 'sentence'"),
        (pa.table({"text": [1]}), "expected the column 'text' to hold strings, found int64"),
        (pd.DataFrame({"sentence": ["a"]}), "expected a column 'text', found 'sentence'"),
    ],
)
def test_columns_that_hold_no_texts_are_refused(classify: BatchFunction, table: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        classify(table)


def test_wrong_arguments_are_refused(classifier_bundle: Path, tmp_path: Path) -> None:
    table = pa.table({"text": ["hello"]})
    with pytest.raises(InputError, match="expected on_error to be return or raise, found 'skip'"):
        batch_function(classifier_bundle, on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="reads a text: name its column"):
        batch_function(classifier_bundle, question_column="q")(table)
    with pytest.raises(InputError, match="expected a table or a column of Arrow or pandas, found list"):
        batch_function(classifier_bundle)(["hello"])
    with pytest.raises(InputError, match="text-classification has the options top_k, found bio"):
        batch_function(classifier_bundle, bio=True)(table)
    with pytest.raises(BundleError, match="expected a bundle"):
        batch_function(tmp_path)(table)


def test_one_thread_is_one_core_where_tune_chose_more(embedding_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(embedding_bundle)
    plan = Plan(precision="fp32", threads=1, inter_threads=2, max_batch_tokens=64)
    write_tuning(bundle, plan, {})
    assert load(bundle).parallel_sessions is not None
    assert batch_function(bundle, threads=1).model().parallel_sessions is None


def test_a_missing_pyarrow_is_an_extra(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert_serve, "bulk", bert_serve.bulk)  # the import below leaves another package there
    for name in [name for name in sys.modules if name.startswith("bert_serve.bulk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*\[batch\]"):
        batch_function(classifier_bundle)


def test_a_missing_extra_can_come_from_another_process() -> None:
    error = MissingExtraError("onnxruntime", "cpu", "bert-export batch")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.extra) == (MissingExtraError, str(error), "cpu")


def test_columns_of_pandas_need_not_be_texts(classify: BatchFunction) -> None:
    frame = pd.DataFrame([["hello", 7]], columns=["text", 0])
    assert list(classify(frame).columns[:2]) == ["text", 0]


def test_pickles_as_its_arguments(classify: BatchFunction) -> None:
    classify(pa.table({"text": ["hello"]}))
    pickled = pickle.dumps(classify)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert copy.model() is classify.model()  # one for all tasks of a worker process


def rename_labels(manifest: dict[str, Any]) -> None:
    manifest["task"]["labels"] = [f"new {label}" for label in manifest["task"]["labels"]]


def test_a_function_answers_with_the_bundle_it_was_made_for(classifier_bundle: Path, copy_bundle: CopyBundle) -> None:
    table = pa.table({"text": ["hello"]})
    bundle = copy_bundle(classifier_bundle)
    old, unused = batch_function(bundle), batch_function(bundle, column="text", threads=1)
    label = old(table)["label"][0].as_py()
    shutil.rmtree(bundle)
    assert copy_bundle(classifier_bundle, rename_labels) == bundle
    assert batch_function(bundle)(table)["label"].to_pylist() == [f"new {label}"]
    assert old(table)["label"].to_pylist() == [label]
    for function in (unused, pickle.loads(pickle.dumps(unused))):
        with pytest.raises(BundleError, match=f"expected the bundle .* digest {unused.bundle_sha256}, found "):
            function(table)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_loads_the_bundle_itself(classify: BatchFunction) -> None:
    """The parent's sessions are in the cache that the child inherits, and cannot run there."""
    table = pa.table({"text": ["hello"]})
    answered = classify(table)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(classify, (table,)).get(60).to_pydict()["label"] == answered.to_pydict()["label"]


def test_importing_the_function_loads_no_arrow() -> None:
    code = "import sys; from bert_serve import batch_function; assert not {'pyarrow', 'pandas'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
