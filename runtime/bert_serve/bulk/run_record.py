"""The record of a bulk run beside its answers: what was answered and how, so that a later run continues the same.

It is `_bert_export_batch.json` in the output folder; readers of Parquet folders skip names that start with `_`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bert_runtime import DataError
from bert_runtime.bundle.atomic_files import atomic_write
from bert_serve.bulk.input_files import FileState, InputFile
from bert_serve.bulk.parts import Part

__all__ = ["RECORD_NAME", "InputState", "RunRecord"]

RECORD_NAME = "_bert_export_batch.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True)
class InputState:
    """Size and hash of an input file when it was first seen."""

    size_bytes: int
    modified_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path, known: "InputState | None" = None) -> "InputState":
        """Return the state of a file, without reading it if its size and time are those of `known`."""
        found = FileState.of(path)
        if known is not None and found == (known.size_bytes, known.modified_ns):
            return known
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(*found, digest)


@dataclass(frozen=True)
class RunRecord:
    """Inputs and options that an output folder holds the answers of."""

    options: Mapping[str, Any]
    """Options that the answers depend on, as JSON values."""
    inputs: Mapping[str, InputState]
    """Input files by name."""
    outputs: tuple[str, ...]
    """Names of all files of answers, those that are still missing included."""

    @classmethod
    def read(cls, folder: Path) -> "RunRecord | None":
        """Return the record of an output folder; `None` where there is none.

        Raises:
            DataError: it cannot be read.
        """
        path = folder / RECORD_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["format_version"] != _FORMAT_VERSION:
                raise ValueError(f"format_version is {values['format_version']}, this release reads {_FORMAT_VERSION}")
            inputs = {name: InputState(**state) for name, state in values["inputs"].items()}
            outputs = tuple(map(PurePosixPath, values["outputs"]))
            if any(name.is_absolute() or ".." in name.parts for name in outputs):  # --force removes these files
                raise ValueError("a file of answers is not in this folder")
            return cls(dict(values["options"]), inputs, tuple(map(str, outputs)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: expected the record of an earlier run, found something that cannot be read ({error!r}); "
                "choose another output folder"
            ) from None

    def write(self, folder: Path) -> None:
        """Write the record into an output folder."""
        values = {"format_version": _FORMAT_VERSION, **asdict(self)}
        with atomic_write(folder / RECORD_NAME) as stream:
            stream.write(json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def continued(self, options: Mapping[str, Any], files: Sequence[InputFile], parts: Sequence[Part]) -> "RunRecord":
        """Return the record of this run and one that continues it, perhaps with further files.

        Raises:
            DataError: the options differ, or a file has changed. All differences are named.
        """
        names = sorted({*self.options, *options})
        if "device" not in self.options:  # of release 0.1.0, which recorded what was asked for
            unknown = {"device", *(["precision"] if self.options.get("precision") in (None, "auto") else [])}
            names = [name for name in names if name not in unknown]
        problems = [
            f"{name} was {self.options.get(name)!r}, now {options.get(name)!r}"
            for name in names
            if self.options.get(name) != options.get(name)
        ]
        states = _states(files, self.inputs)
        problems += [
            f"{file.path} has changed"
            for file in files
            if file.name in self.inputs and states[file.name].sha256 != self.inputs[file.name].sha256
        ]
        problems += [
            f"{file.path} has its answers already, under the name {name}, as from another pattern"
            for file in files
            if file.name not in self.inputs
            for name, state in self.inputs.items()
            if name not in states and state == states[file.name]
        ]
        stems = {InputFile(Path(name), name).stem: name for name in self.inputs}
        problems += [
            f"{file.path} would have the answers of {stems[file.stem]}, another file of this name"
            for file in files
            if stems.get(file.stem, file.name) != file.name
        ]
        if problems:
            raise DataError(
                f"expected to continue the earlier run, found another: {'; '.join(problems)}. Give the same options "
                "and files, choose another output folder, or start over with --force"
            )
        outputs = dict.fromkeys([*self.outputs, *(part.output for part in parts)])
        return RunRecord(options, {**self.inputs, **states}, tuple(outputs))


def _states(files: Sequence[InputFile], known: Mapping[str, InputState]) -> dict[str, InputState]:
    try:
        return {file.name: InputState.of(file.path, known.get(file.name)) for file in files}
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror or error}") from None
