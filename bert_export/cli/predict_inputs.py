"""Inputs of `bert-export predict`: arguments, rows of a file, or lines of stdin, in the groups in which they arrive."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import NamedTuple, cast

from bert_runtime.batching.streaming import CHUNK_SIZE, divide
from bert_runtime.errors import DataError
from bert_runtime.records import Record, iter_rows
from bert_runtime.records.lines import numbered_lines
from bert_runtime.records.open_text import Utf8Text
from bert_runtime.tasks import Task, TextInput

__all__ = ["Item", "argument_items", "file_items", "grouped", "is_live", "stdin_items"]

_MAX_WAITING = 4 * CHUNK_SIZE
"""Items that are read ahead of the model; a writer that is faster than the model then waits."""


class Item(NamedTuple):
    """One input, or the error of a row that is none."""

    location: str
    """The input for error messages, such as `messages.txt:3`."""
    value: TextInput | DataError


def argument_items(texts: Sequence[str], pair: str | None, question: str | None) -> Iterator[Item]:
    """Iterate over texts of the command line, combined with the second text of a pair, or with a question."""
    for index, text in enumerate(texts):
        value = TextInput(text, pair) if question is None else TextInput(question, text)
        yield Item(f"input {index}", value)


def file_items(path: Path, columns: dict[str, str] | None, task: Task) -> Iterator[Item]:
    """Iterate over the rows of a file."""
    for row in iter_rows(path, columns):
        try:
            yield Item(str(path), row) if isinstance(row, DataError) else Item(row.where, _single_input(row, task))
        except DataError as error:
            yield Item(str(path), error)


def _single_input(record: Record, task: Task) -> TextInput:
    """Return the input of a row, and raise `DataError` if the task reads several from it."""
    first, *others = task.inputs(record)
    if others:
        fields = ("text", "query", "text_pair", "positive", "document", "negative")
        names = [name for name in fields if name in record.fields]
        raise DataError(
            f"{record.where}: expected one text, found {' and '.join(names)}, which {task.name} reads separately; "
            "give a file with one text per row"
        )
    return first


def stdin_items() -> Iterator[Item]:
    """Iterate over the lines of stdin."""
    for number, line in numbered_lines(Utf8Text(_stdin_bytes(), "<stdin>")):
        yield Item(f"<stdin>:{number}", line if isinstance(line, DataError) else TextInput(line.rstrip("\r\n")))


def _stdin_bytes() -> BufferedReader:
    """Open stdin a second time: Python could not end while a thread waits for a line in `sys.stdin`."""
    try:
        return BufferedReader(FileIO(sys.stdin.fileno(), closefd=False))
    except OSError:  # no file: tests replace stdin
        return BufferedReader(cast(RawIOBase, sys.stdin.buffer))


def is_live(path: Path | None) -> bool:
    """Return whether a file, or stdin for `None`, is a pipe, a socket or a device, whose writer may pause."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path is None else path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode)


def grouped(items: Iterator[Item], *, live: bool) -> Iterator[list[Item]]:
    """Yield items in groups to predict together, and raise the error of `items` after all that came before it.

    Args:
        items: the items.
        live: whether a group is what has arrived, so that no item waits for the next one; otherwise groups are full,
            and the same in every run.
    """
    return _arriving(items) if live else divide(items)


def _arriving(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Read items in a thread; yield all that are there, or wait for one."""
    waiting: Queue[Item | Exception] = Queue(_MAX_WAITING)

    def read() -> None:
        try:
            for item in items:
                waiting.put(item)
        except Exception as error:
            waiting.put(error)
        else:
            waiting.put(StopIteration())

    Thread(target=read, name="bert-export-stdin", daemon=True).start()
    while True:
        arrived = [waiting.get()]
        while len(arrived) < CHUNK_SIZE and not waiting.empty():
            arrived.append(waiting.get())
        if group := [item for item in arrived if not isinstance(item, Exception)]:
            yield group
        if isinstance(end := arrived[-1], Exception):
            if isinstance(end, StopIteration):
                return
            raise end
