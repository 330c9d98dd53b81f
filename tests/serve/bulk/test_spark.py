"""The batch function in Spark: `mapInArrow`, `mapInPandas` and a pandas UDF, in Spark's own Python processes."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import load
from bert_serve import batch_function

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

TEXTS = ["hello there", None, "where is my card?", "bye"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark of two Python workers."""
    if shutil.which("java") is None:
        pytest.skip("needs Java, which Spark runs on")
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark")
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name, value in {
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    return spark.createDataFrame(list(enumerate(TEXTS)), "id int, text string").repartition(2)


@pytest.fixture(scope="module")
def expected(classifier_bundle: Path) -> list[Any]:
    return [answer.to_dict().get("label") for answer in load(classifier_bundle)(TEXTS, on_error="return")]  # type: ignore[arg-type]


def labels(frame: Any) -> list[Any]:
    rows = sorted(frame.collect(), key=lambda row: row["id"])
    assert [row["text"] for row in rows] == TEXTS
    assert [row["error"] is None for row in rows] == [text is not None for text in TEXTS]
    return [row["label"] for row in rows]


def test_map_in_arrow(classifier_bundle: Path, frame: Any, expected: list[Any]) -> None:
    answers = batch_function(classifier_bundle, threads=1)
    assert labels(frame.mapInArrow(answers.map_in_spark, answers.spark_schema(frame.schema))) == expected


def test_map_in_pandas(classifier_bundle: Path, frame: Any, expected: list[Any]) -> None:
    answers = batch_function(classifier_bundle, threads=1)
    assert labels(frame.mapInPandas(answers.map_in_spark, answers.spark_schema(frame.schema))) == expected


def test_pandas_udf(classifier_bundle: Path, frame: Any, expected: list[Any]) -> None:
    classify = batch_function(classifier_bundle, threads=1).spark_udf()
    assert labels(frame.select("*", classify("text").alias("answer")).select("id", "text", "answer.*")) == expected


def test_embeddings(embedding_bundle: Path, frame: Any) -> None:
    answers = batch_function(embedding_bundle, keep=["id"], threads=1)
    rows = frame.mapInArrow(answers.map_in_spark, answers.spark_schema(frame.schema)).collect()
    vectors = {row["id"]: row["embedding"] for row in rows}
    assert vectors[1] is None
    assert {len(vector) for number, vector in vectors.items() if number != 1} == {32}
    assert vectors[0] == pytest.approx(load(embedding_bundle).encode([TEXTS[0]])[0].tolist(), abs=0.01)  # type: ignore[list-item]
