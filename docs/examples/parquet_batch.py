"""Classify a column of a Parquet file: writes the file again with the columns `label` and `score`.

Install:  pip install pyarrow tqdm
Run:      python parquet_batch.py intents-bundle messages.parquet labelled.parquet --column text

Reads and writes a batch of rows at a time, so that memory does not grow with the file. Rows without a text keep empty
columns. The output appears when it is complete.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from bert_runtime import Classification, Model, load

PREDICTIONS = [pa.field("label", pa.string()), pa.field("score", pa.float32())]


def add_predictions(model: Model, rows: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Return the rows with the columns of `PREDICTIONS`."""
    results = model(rows.column(column), on_error="return")  # null is an InputFailure
    found = [result if isinstance(result, Classification) else None for result in results]
    labels = pa.array([result.label if result else None for result in found], pa.string())
    scores = pa.array([result.score if result else None for result in found], pa.float32())
    schema = pa.schema([*rows.schema, *PREDICTIONS])
    return pa.RecordBatch.from_arrays([*rows.columns, labels, scores], schema=schema)


def classify_file(model: Model, source: Path, output: Path, column: str, batch_rows: int = 4096) -> None:
    """Write `output`: the rows of `source` with predictions."""
    file = pq.ParquetFile(source)
    if taken := {field.name for field in PREDICTIONS} & set(file.schema_arrow.names):
        raise SystemExit(f"{source}: expected no columns {', '.join(sorted(taken))}, which the predictions get")
    schema = pa.schema([*file.schema_arrow, *PREDICTIONS])
    partial = output.with_name(f"{output.name}.partial")
    try:
        with pq.ParquetWriter(partial, schema) as writer, tqdm(total=file.metadata.num_rows, unit=" rows") as progress:
            for rows in file.iter_batches(batch_rows):
                writer.write_batch(add_predictions(model, rows, column))
                progress.update(len(rows))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify a column of a Parquet file.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--column", default="text")
    arguments = parser.parse_args()
    classify_file(load(arguments.bundle), arguments.source, arguments.output, arguments.column)


if __name__ == "__main__":
    main()
