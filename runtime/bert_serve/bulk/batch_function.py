"""A bundle as a function of Arrow and pandas data, for engines that call such functions in many processes."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from bert_runtime import BundleError, DataError, InputError, Manifest, Model, Task, load
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import MANIFEST_NAME
from bert_runtime.cascade import read_task
from bert_runtime.tasks import FeatureExtraction, FillMask
from bert_serve.bulk.answer_columns import Answer, answer_arrays, answer_fields
from bert_serve.bulk.input_columns import InputColumns, check_column_types

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import StructType

__all__ = ["MAX_ROWS", "BatchFunction", "ErrorHandling", "Options"]

ErrorHandling = Literal["return", "raise"]
"""The treatment of a row that cannot be processed: null answers and a reason, or an `InputError` for the batch."""

MAX_ROWS = 4096
"""Rows that are answered together where answers are small. A judgement."""

_MAX_ANSWER_BYTES = 1 << 28
"""Answers that are held together where they are large. A judgement."""

Options = tuple[tuple[str, Any], ...]
"""Names and values of keyword arguments, in a form that can be hashed."""


@dataclass(frozen=True)
class BatchFunction:
    """Answer the texts of a table; made by `bert_serve.batch_function`.

    It holds arguments alone: pickling it is cheap. The bundle is loaded on the first call in each process, and shared
    by all functions there with the same arguments. It must be the one that was there when the function was made.
    """

    bundle: str
    """Path of the bundle's directory."""
    bundle_sha256: str = ""
    """The manifest's digest; by default that of the bundle at the path."""
    column: str | None = None
    pair_column: str | None = None
    question_column: str | None = None
    context_column: str | None = None
    keep: tuple[str, ...] | None = None
    """Columns of the table that the result has, too; all of them if `None`."""
    prefix: str = ""
    """Start of the names of the columns of answers."""
    on_error: ErrorHandling = "return"
    load_options: Options = ()
    """Keyword arguments of `bert_runtime.load`."""
    task_options: Options = ()
    """Options that the task decodes with."""

    def __post_init__(self) -> None:
        if self.on_error not in ("return", "raise"):
            raise InputError(f"expected on_error to be return or raise, found {self.on_error!r}")
        if not self.bundle_sha256:
            object.__setattr__(self, "bundle_sha256", _bundle_digest(self.bundle))

    def __call__(self, data: Any) -> Any:
        """Return answers in the form of what is given.

        Args:
            data: a `pyarrow.RecordBatch`, a `pyarrow.Table` or a `pandas.DataFrame`, of which one or two columns are
                read; or one column of texts, as a `pyarrow.Array`, `pyarrow.ChunkedArray` or `pandas.Series`.

        Returns:
            For a table, the kept columns and those of the answers, in the same class. For a column, the answers: a
            `pyarrow.StructArray`, or a `pandas.DataFrame`. Rows stay in order.

        Raises:
            DataError: a column is missing, holds no strings, or has the name of a column of answers.
            InputError: `data` is something else; or a row cannot be processed, with `on_error="raise"`.
        """
        if isinstance(data, pa.RecordBatch | pa.Table):
            return self._answer_table(data)
        if isinstance(data, pa.Array | pa.ChunkedArray):
            return pa.StructArray.from_arrays(self._arrays([data.to_pylist()]), fields=self.fields)
        if hasattr(data, "iloc"):  # of pandas, which is not imported for this
            return self._answer_pandas(data)
        raise InputError(f"expected a table or a column of Arrow or pandas, found {type(data).__name__}")

    def map_in_spark(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Answer tables one by one, for `mapInArrow` and `mapInPandas` of Spark.

        Embeddings are lists of any size: Spark does not read those of fixed size.
        """
        for batch in batches:
            answered = self(batch)
            yield _without_fixed_sizes(answered) if isinstance(answered, pa.RecordBatch) else answered

    @property
    def task(self) -> Task:
        """The bundle's task, with the options of this function; reads the manifest alone."""
        return _read_task(os.getpid(), self.bundle, self.bundle_sha256, self.task_options)

    @property
    def max_rows(self) -> int:
        """Rows whose answers may be held together; at least one.

        Token vectors count with texts of full length, and fill-mask's logits with one mask a text.
        """
        task = self.task
        if isinstance(task, FeatureExtraction):
            row_bytes = 4 * task.output_width * Manifest.read(Path(self.bundle)).max_tokens
        elif isinstance(task, FillMask):
            row_bytes = 4 * int(Manifest.read(Path(self.bundle)).output.axes[-1])
        else:
            return MAX_ROWS
        return max(1, min(MAX_ROWS, _MAX_ANSWER_BYTES // row_bytes))

    @property
    def columns(self) -> InputColumns:
        """The columns that are read."""
        return InputColumns.of(self.task, self.column, self.pair_column, self.question_column, self.context_column)

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of answers."""
        fields = answer_fields(self.task, errors=self.on_error == "return")
        return [field.with_name(self.prefix + field.name) for field in fields]

    def output_schema(self, schema: pa.Schema, where: str = "the table") -> pa.Schema:
        """Return the schema of the result for a table.

        Args:
            schema: the table's schema.
            where: the table in messages, such as its file.

        Raises:
            DataError: see `__call__`.
        """
        check_column_types(schema, self.columns, where)
        kept = [schema.field(name) for name in self._kept(schema.names, where)]
        return pa.schema([*kept, *self.fields])

    def spark_schema(self, schema: "StructType | None" = None) -> "StructType":
        """Return the Spark type of the result.

        Args:
            schema: `DataFrame.schema`, for `mapInArrow` and `mapInPandas`; without it, the result is the type of the
                answers alone, for a pandas UDF.
        """
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

        if schema is None:
            return from_arrow_schema(pa.schema(self.fields))
        return from_arrow_schema(self.output_schema(to_arrow_schema(schema)))

    def spark_udf(self) -> Any:
        """Return a pandas UDF of Spark, from a column of texts to a struct of answers."""
        import pandas as pd
        from pyspark.sql.pandas.functions import pandas_udf

        def answer(texts: pd.Series) -> pd.DataFrame:  # Spark chooses the kind of UDF by these types
            return self(texts)

        return pandas_udf(answer, self.spark_schema())  # type: ignore[call-overload] # its stubs know no pandas 3

    def model(self) -> Model:
        """Return the loaded bundle of this process."""
        return _load_model(os.getpid(), self.bundle, self.bundle_sha256, self.load_options, self.task_options)

    def _answer_table(self, table: "pa.RecordBatch | pa.Table") -> "pa.RecordBatch | pa.Table":
        schema = self.output_schema(table.schema)
        arrays = self._arrays([table.column(name).to_pylist() for name in self.columns.names])
        kept = [table.column(name) for name in self._kept(table.schema.names, "the table")]
        return type(table).from_arrays([*kept, *arrays], schema=schema)

    def _answer_pandas(self, data: "pd.DataFrame | pd.Series[Any]") -> "pd.DataFrame":
        import pandas as pd

        if isinstance(data, pd.Series):
            kept, values = pd.DataFrame(index=data.index), [data.tolist()]
        else:
            names = list(map(str, data.columns))
            self.columns.check(names, "the table")
            kept = data.iloc[:, [names.index(name) for name in self._kept(names, "the table")]]
            values = [data.iloc[:, names.index(name)].tolist() for name in self.columns.names]
        answers = pa.Table.from_arrays(self._arrays(values), schema=pa.schema(self.fields))
        frame = answers.to_pandas(integer_object_nulls=True).set_axis(data.index)
        return pd.concat([kept, frame], axis=1)

    def _arrays(self, columns: Sequence[Sequence[Any]]) -> list[pa.Array]:
        """Return the columns of answers for the values of the columns that are read."""
        inputs = self.columns.inputs(columns)
        answers: Sequence[Answer] = self.model()(inputs, on_error=self.on_error) if inputs else []
        return answer_arrays(answer_fields(self.task, errors=self.on_error == "return"), answers)

    def _kept(self, names: Sequence[str], where: str) -> tuple[str, ...]:
        """Return the columns of a table that stay."""
        kept = tuple(names) if self.keep is None else self.keep
        if absent := [name for name in kept if name not in names]:
            raise DataError(
                f"{where}: expected the columns to keep, found no {', '.join(map(repr, absent))} among "
                f"{', '.join(map(repr, names))}"
            )
        if taken := [field.name for field in self.fields if field.name in kept]:
            raise DataError(
                f"{where}: the answers have the columns {', '.join(map(repr, taken))}, and so has the table; give the "
                "answers' names a prefix, or keep other columns"
            )
        return kept


def _without_fixed_sizes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make lists of fixed size plain lists."""
    return batch.cast(pa.schema([field.with_type(_plain_lists(field.type)) for field in batch.schema]))


def _plain_lists(kind: pa.DataType) -> pa.DataType:
    """Return a type in which lists of fixed size, also those within lists, have any size."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_lists(kind.value_type)))
    return kind


def _bundle_digest(bundle: str) -> str:
    """Return what identifies a bundle, whose manifest has the hashes of its files."""
    read_task(Path(bundle))
    try:
        return manifest_digest(json.loads(Path(bundle, MANIFEST_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BundleError(f"{bundle}: was replaced while it was read ({error}); try again") from None


def _check_digest(bundle: str, sha256: str) -> None:
    """Raise `BundleError` where the bundle at a path is not the one with a digest."""
    if (found := _bundle_digest(bundle)) != sha256:
        raise BundleError(
            f"{bundle}: expected the bundle that this work began with, whose manifest has the digest {sha256}, found "
            f"{found}: it was replaced, or this machine has another; begin again, with one bundle on all machines"
        )


@lru_cache(maxsize=8)
def _read_task(process_id: int, bundle: str, sha256: str, options: Options) -> Task:
    task = read_task(Path(bundle))
    _check_digest(bundle, sha256)
    return task.with_options(**dict(options))


@lru_cache(maxsize=8)
def _load_model(process_id: int, bundle: str, sha256: str, load_options: Options, task_options: Options) -> Model:
    """Load a bundle once for each process: a fork inherits the cache, but cannot use the sessions in it."""
    model = load(bundle, **dict(load_options))
    _check_digest(bundle, sha256)  # afterwards: what is there before need not be what is loaded
    return model.with_options(**dict(task_options))
