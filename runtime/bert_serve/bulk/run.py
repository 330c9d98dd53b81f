"""Bulk runs: files of texts in, files of answers out, resumable, on one of several engines."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bert_runtime import DataError, DeploymentError
from bert_runtime.bundle.folder_lock import exclusive
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cascade.manifest import CascadeManifest
from bert_runtime.errors import CascadeBundleError, CudaUnavailableError
from bert_runtime.variant_choice import chosen_variant
from bert_serve.bulk.batch_function import BatchFunction
from bert_serve.bulk.input_files import InputFile, check_local, find_inputs
from bert_serve.bulk.part_writer import Job, PartResult, remove_leftovers
from bert_serve.bulk.parts import Part, plan_parts
from bert_serve.bulk.run_record import RunRecord

__all__ = ["Engine", "Run", "Summary", "prepare_run"]

_log = logging.getLogger("bert_serve")

Engine = Callable[[Job, Sequence[Part], Callable[[int], object]], Iterator[PartResult]]
"""Answers parts in any order, see `local_engine`; calls its third argument with the number of rows done."""

_SHOWN_FAILURES = 5


@dataclass(frozen=True)
class Summary:
    """Counts of a run."""

    files: int
    """Input files."""
    parts: int
    """Files of answers that the inputs give."""
    parts_done_before: int
    rows: int
    """Rows that this run has written."""
    rows_without_answer: int
    """Those of them that could not be processed."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """A run that may have been started before."""

    job: Job
    files: tuple[InputFile, ...]
    parts: tuple[Part, ...]
    missing: tuple[Part, ...]
    """The parts that have no file of answers yet."""

    @property
    def missing_rows(self) -> int | None:
        """Number of rows that are missing; `None` where nobody has counted them."""
        counts = [part.rows for part in self.missing]
        return None if None in counts else sum(count for count in counts if count is not None)

    def execute(self, engine: Engine, advance: Callable[[int], object] = lambda rows: None) -> Summary:
        """Answer the missing parts.

        A part whose input cannot be processed does not stop the others.

        Args:
            engine: answers parts.
            advance: called with the number of rows that have been done since the last call.

        Raises:
            DataError: inputs could not be processed; all other parts are done.
            OSError: the output cannot be written.
        """
        start = time.monotonic()
        results: list[PartResult] = []
        try:
            results.extend(engine(self.job, self.missing, advance) if self.missing else ())
        finally:
            remove_leftovers(self.job.output)
        if failures := [result.failure for result in results if result.failure is not None]:
            hidden = len(failures) - _SHOWN_FAILURES
            raise DataError(
                f"{'; '.join(sorted(failures)[:_SHOWN_FAILURES])}"
                + (f"; and {hidden} more" if hidden > 0 else "")
                + f" ({len(results) - len(failures)} of {len(results)} parts are done; a second run does the others)"
            )
        return Summary(
            len(self.files),
            len(self.parts),
            len(self.parts) - len(self.missing),
            sum(result.rows for result in results),
            sum(result.rows_without_answer for result in results),
            round(time.monotonic() - start, 3),
        )


@contextmanager
def prepare_run(
    patterns: Sequence[str],
    output: Path,
    function: BatchFunction,
    *,
    part_rows: int = 50_000,
    force: bool = False,
) -> Iterator[Run]:
    """Compare a run with the one that `output` has answers of, and find what is missing.

    Within the block, no other run can write to the folder.

    Args:
        patterns: the input files, see `find_inputs`.
        output: the folder of answers. It is created.
        function: answers a batch.
        part_rows: rows of a file of answers at most; what is lost where a process is killed.
        force: whether to remove the answers of an earlier run first.

    Raises:
        DataError: the folder has answers of other files or options, or files of these names that no run has written.
        DeploymentError: another run writes to the folder.
    """
    check_local(output)
    files = find_inputs(patterns)
    if inside := [file.path for file in files if file.path.resolve().is_relative_to(output.resolve())]:
        raise DataError(f"{inside[0]}: expected inputs outside of the output folder; choose another folder for answers")
    parts = plan_parts(files, part_rows)
    if taken := [name for name, count in Counter(part.output for part in parts).items() if count > 1]:
        raise DataError(
            f"{taken[0]}: expected one file of answers of this name, found two, one of them a part of a large input; "
            "answer them into separate folders"
        )
    function, chosen = _with_chosen_variants(function)
    options = {**_recorded_options(function, part_rows), **chosen}
    output.mkdir(parents=True, exist_ok=True)
    in_use = DeploymentError(f"{output}: another run is writing to this folder; wait until it ends")
    with exclusive(output, in_use):
        record = RunRecord.read(output)
        _check_outputs(output, parts, set() if record is None else set(record.outputs))
        if record is not None and force:
            for name in record.outputs:  # the record stays until they are gone, for a run that is killed meanwhile
                (output / name).unlink(missing_ok=True)
            record = None
        try:
            earlier = record or RunRecord(options, {}, ())
            record = earlier.continued(options, _recorded_files(files, parts, earlier), parts)
        except DataError as error:
            raise DataError(f"{output}: {error}") from None
        record.write(output)
        remove_leftovers(output)
        missing = tuple(part for part in parts if not (output / part.output).exists())
        yield Run(Job(function, output.resolve(), function.max_rows), tuple(files), tuple(parts), missing)


def _check_outputs(folder: Path, parts: Sequence[Part], written: Set[str]) -> None:
    """Raise `DataError` for a file of a part's name that is none of those that earlier runs have written."""
    for part in parts:
        if part.output not in written and (path := folder / part.output).exists():
            raise DataError(
                f"{path}: expected a folder that is empty or has answers of an earlier run, found a file that no run "
                "has written; choose another output folder"
            )


def _recorded_files(files: Sequence[InputFile], parts: Sequence[Part], earlier: RunRecord) -> list[InputFile]:
    """Return the files without new ones that cannot be read, which may be repaired before the next run."""
    unreadable = {part.path for part in parts if not part.is_readable}
    return [file for file in files if file.path not in unreadable or file.name in earlier.inputs]


def _recorded_options(function: BatchFunction, part_rows: int) -> Mapping[str, Any]:
    """Return what the files of answers depend on besides the inputs, as JSON values."""
    columns = function.columns
    return {
        "bundle_sha256": function.bundle_sha256,
        "columns": list(columns.names),
        "keep": None if function.keep is None else list(function.keep),
        "prefix": function.prefix,
        "on_error": function.on_error,
        **{name: list(x) if isinstance(x, tuple) else x for name, x in function.task_options},
        "part_rows": part_rows,
    }


def _with_chosen_variants(function: BatchFunction) -> tuple[BatchFunction, dict[str, str]]:
    """Fix the device and the precision that this machine chooses where none are given.

    Otherwise processes of one run, on machines with other processors, GPUs or measurements, would choose others. Only
    models of a cascade that have different precisions are left to choose these. They run on one device.

    Returns:
        The function, and what was chosen.
    """
    device = str(dict(function.load_options).get("device") or "auto")
    fixed, chosen = _with_chosen_variant(function, device)
    if device == "auto" and chosen["device"] != "cpu":
        try:
            fixed.model()  # which the process keeps
        except CudaUnavailableError as error:
            _log.warning("running on the CPU: %s", error)
            return _with_chosen_variant(function, "cpu")
    return fixed, chosen


def _with_chosen_variant(function: BatchFunction, device: str) -> tuple[BatchFunction, dict[str, str]]:
    bundle, options = Path(function.bundle), dict(function.load_options)
    precision = options.get("precision") or "auto"
    kinds, precisions = zip(*(chosen_variant(folder, precision, device) for folder in _folders(bundle)), strict=True)
    if len({*kinds}) > 1:
        return _with_chosen_variant(function, "cpu")
    options["device"] = kinds[0] if device == "auto" else device
    if len({*precisions}) == 1:
        options["precision"] = precisions[0]
    function = replace(function, load_options=tuple(options.items()))
    return function, {"precision": ", ".join(dict.fromkeys(precisions)), "device": kinds[0]}


def _folders(bundle: Path) -> list[Path]:
    """Return the folder of a bundle, or those of a cascade's two."""
    try:
        Manifest.read(bundle)
    except CascadeBundleError:
        return [bundle / part.folder for part in CascadeManifest.read(bundle).parts]
    return [bundle]
