"""A bundle as a function of Arrow and pandas data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_runtime import MissingExtraError

if TYPE_CHECKING:
    from bert_serve.bulk.batch_function import BatchFunction

__all__ = ["batch_function"]


def batch_function(
    bundle: str | Path,
    *,
    column: str | None = None,
    pair_column: str | None = None,
    question_column: str | None = None,
    context_column: str | None = None,
    keep: Sequence[str] | None = None,
    prefix: str = "",
    on_error: Literal["return", "raise"] = "return",
    precision: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    **options: Any,
) -> "BatchFunction":
    """Return a bundle as a function of tables, for pandas, Arrow, and engines such as Spark, Ray Data and Dask.

        answers = batch_function("intents", column="message", threads=1)
        table = answers(table)                                       # an Arrow table, or a DataFrame of pandas
        frame.mapInArrow(answers.map_in_spark, answers.spark_schema(frame.schema))      # Spark

    The function can be pickled, and loads the bundle once in each process that calls it. A process that finds another
    bundle at its path raises `BundleError`; make the function again to use a bundle that was replaced.

    Args:
        bundle: the directory that `bert-export export` wrote, at the same path on all machines.
        column: the column of texts, by default `text`.
        pair_column: the column of second texts of pairs. By default there is none, but `text_pair` for
            next-sentence-prediction and rerank.
        question_column: for question-answering, the column of questions, by default `question`.
        context_column: for question-answering, the column of their contexts, by default `context`.
        keep: columns of the table that the result has, too; by default all.
        prefix: start of the names of the columns of answers.
        on_error: what happens to a row that cannot be processed, such as a missing text. `return`: its answers are
            null, and the column `error` has the reason. `raise`: an `InputError` for the whole table.
        precision: see `bert_runtime.load`.
        device: see `bert_runtime.load`.
        threads: cores that a process uses, by default as `bert_runtime.load` does. Engines that run a process per core
            want 1.
        **options: options of the bundle's task, such as `top_k`.

    Returns:
        The function, see `bert_serve.bulk.batch_function.BatchFunction`.

    Raises:
        BundleError: there is no bundle, or it is damaged.
        MissingExtraError: pyarrow is not installed.
        InputError: `on_error` is something else.
    """
    try:
        from bert_serve.bulk.batch_function import BatchFunction
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtraError("pyarrow", "batch", "work on tables") from None
    return BatchFunction(
        bundle=str(Path(bundle).absolute()),
        column=column,
        pair_column=pair_column,
        question_column=question_column,
        context_column=context_column,
        keep=None if keep is None else tuple(keep),
        prefix=prefix,
        on_error=on_error,
        # Without inter_threads, a plan of `tune` for one thread per operator would run batches on other cores, too.
        load_options=(
            ("precision", precision),
            ("device", device),
            ("threads", threads),
            ("inter_threads", threads),
        ),
        task_options=tuple(sorted((name, tuple(x) if isinstance(x, list) else x) for name, x in options.items())),
    )
