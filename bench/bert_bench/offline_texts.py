"""Texts of the throughput workloads from files."""

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
"""By name: the file in a folder of data sets, and its columns. Of SQuAD the paragraphs are read, each once."""


def read_offline_texts(
    data: Path | None, files: Sequence[Path], columns: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """By name: the texts of the data sets that are in the folder `data`, and of `files`, each named by its stem.

    `columns` are those of `files`, see `bert_runtime.records.read_records`.

    Raises `InputError` where the folder has none of them or two files have one name, `DataError` for a file that cannot
    be read.
    """
    found: dict[str, list[str]] = {}
    for name, (file, fixed) in DATA_SETS.items() if data is not None else ():
        assert data is not None
        if (data / file).is_file():
            found[name] = _texts(read_records(data / file, fixed))
    if data is not None and not found:
        raise InputError(f"{data}: expected some of {', '.join(file for file, _ in DATA_SETS.values())}, found none")
    for path in files:
        name = Path(path.name.removesuffix(".gz")).stem
        if name in found:
            raise InputError(f"{path}: expected a name of its own, found {name} twice; rename one of the files")
        found[name] = _texts(read_records(path, columns))
    return found


def _texts(records: Sequence[Record]) -> list[str]:
    """The text of each row, or its paragraph, without repetitions."""
    fields = ("context" if "context" in record.fields else "text" for record in records)
    texts = (
        str(record.fields[field]) if field == "context" else record.text()
        for record, field in zip(records, fields, strict=True)
    )
    return list(dict.fromkeys(texts))
