"""Texts of the offline (throughput) workloads, read from data sets and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_runtime.errors import InputError
from bert_runtime.records import Record, read_records

__all__ = ["DATA_SETS", "read_offline_texts"]

DATA_SETS = {
    "sst2": ("sst2/dev.tsv", {"text": "sentence"}),
    "banking77": ("banking77/test_odd_rows.csv", {}),
    "squad": ("squad_v1.1/dev-articles.json.gz", {}),
}
"""By workload name: the file in a folder of data sets, and its columns. Of SQuAD, each paragraph is read once."""


def read_offline_texts(
    data: Path | None, files: Sequence[Path], columns: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Read the texts of the offline workloads, without repetitions.

    Args:
        data: a folder with some of the data sets of `DATA_SETS`.
        files: further files, each a workload named after its stem.
        columns: columns of `files`, see `bert_runtime.records.read_records`.

    Returns:
        Texts by workload name.

    Raises:
        InputError: `data` has none of the data sets, or two workloads have the same name.
        DataError: a file cannot be read.
    """
    workloads: dict[str, list[str]] = {}
    for name, (file, fixed_columns) in DATA_SETS.items() if data is not None else ():
        assert data is not None
        if (data / file).is_file():
            workloads[name] = _unique_texts(read_records(data / file, fixed_columns))
    if data is not None and not workloads:
        raise InputError(f"{data}: expected some of {', '.join(file for file, _ in DATA_SETS.values())}, found none")
    for path in files:
        name = Path(path.name.removesuffix(".gz")).stem
        if name in workloads:
            raise InputError(f"{path}: expected a unique file name, found {name} twice; rename one of the files")
        workloads[name] = _unique_texts(read_records(path, columns))
    return workloads


def _unique_texts(records: Sequence[Record]) -> list[str]:
    """Return the text of each row, or its context in SQuAD, without repetitions."""
    texts = (
        str(record.fields["context"]) if "context" in record.fields else record.text()
        for record in records
    )  # fmt: skip
    return list(dict.fromkeys(texts))
