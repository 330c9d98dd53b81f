"""Search for a smaller model with the task metric kept, and export it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_export.compression.augmentation import num_copies
from bert_export.compression.data import SearchData, read_search_data
from bert_export.compression.evaluator import CandidateEvaluator
from bert_export.compression.gate import choose, remember_gate
from bert_export.compression.goal import CompressionSettings, Goal
from bert_export.compression.journal import JOURNAL_NAME, Journal, is_unfinished
from bert_export.compression.latency_table import LatencyTable
from bert_export.compression.measuring import drop_to_json
from bert_export.compression.output import compression_record, write_bundle
from bert_export.compression.preparation import (
    SearchRequest,
    augment,
    check_task,
    fit_length,
    kept_percents,
    measure_table,
    open_reference,
)
from bert_export.compression.result import CompressionResult, pareto_rows
from bert_export.compression.search import Measured, fastest_within_drop, speed_ladder, within_speed
from bert_export.compression.search_folder import check_outside, make_folder, remove_contents
from bert_export.compression.surgery import Surgeon
from bert_export.model_card import export_command
from bert_export.output_files import check_bundle_output
from bert_models import Checkpoint, open_checkpoint
from bert_models.compression import check_cuttable
from bert_models.errors import CompressionError, TrainingInterruptedError
from bert_runtime.bundle.folder_lock import exclusive
from bert_runtime.tasks import Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["compress"]

_BEST = "best"
"""Folder in that of the search with the best bundle, where it is not what was asked for."""


def compress(
    checkpoint: str | Path,
    output: str | Path,
    train: str | Path,
    dev: str | Path,
    goal: Goal,
    *,
    test: str | Path | None = None,
    unlabelled: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    settings: CompressionSettings | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> CompressionResult:
    """Search for a smaller model with the task metric kept, by measured latency and distillation, and export it.

    The folder of the search, `OUTPUT.search`, holds the journal `candidates.jsonl`, checkpoints and bundles. A search
    that was interrupted or killed goes on when it is called again with the same arguments; the budget may differ.

    Args:
        checkpoint: folder or hub id of a fine-tuned checkpoint.
        output: the bundle to write, if the gate passes.
        train: labelled training file.
        dev: labelled file that candidates are judged on. Without `test`, a part of it is the gate.
        goal: the least speed-up, or the largest loss.
        test: labelled file for the gate, in place of a part of `dev`.
        unlabelled: further inputs to train on. The teacher labels all rows then.
        columns: column names of the files by field, see `bert_runtime.records.read_records`.
        settings: budget, vocabulary, training.
        force: replace an existing bundle, and a search in the folder that has ended or is for something else; an
            interrupted one goes on.
        progress: called with a line at the start of each stage.

    Returns:
        The result. If what was asked for cannot be reached, on Ctrl-C, and if the search fails later than its first
        training, the best bundle is in the search's folder.

    Raises:
        CompressionError: the model or the files do not allow a search, another process is searching in the folder, or
            no candidate is fast enough or could be trained.
        OutputExistsError: `output` exists.
        BertError: a file or the checkpoint cannot be read.
    """
    request = SearchRequest(
        goal=goal, settings=settings or CompressionSettings(), checkpoint=checkpoint, output=Path(output),
        train=Path(train), unlabelled=None if unlabelled is None else Path(unlabelled), dev=Path(dev),
        test=None if test is None else Path(test), columns=columns or {}, force=force,
    )  # fmt: skip
    check_bundle_output(request.output, force=force)
    source = open_checkpoint(checkpoint)
    check_outside(request, source)
    if source.config.token_pruning is not None:
        raise CompressionError(
            f"{source.path}: expected a checkpoint that keeps all tokens, since layers are left out; it prunes them "
            f"({source.config.token_pruning}): remove token_pruning from its config.json"
        )
    task = check_task(source)
    if request.settings.vocabulary == "cut":
        check_cuttable(source.tokenizer())
    tokenizer = source.text_tokenizer(request.settings.max_tokens, task.windows)
    data = _read_data(request, task, tokenizer)
    asked, request = request, fit_length(request, task, tokenizer, data, progress)
    folder, identity = make_folder(request), asked.identity(source)
    in_use = CompressionError(f"{folder}: another process is searching in this folder; wait until it ends")
    with exclusive(folder, in_use):
        if force and not is_unfinished(folder / JOURNAL_NAME, identity):
            remove_contents(folder)
        journal = Journal(folder / JOURNAL_NAME, identity)
        return _search_and_finish(request, source, _prepare(request, source, task, data, journal, progress))


def _search_and_finish(request: SearchRequest, source: Checkpoint, evaluator: CandidateEvaluator) -> CompressionResult:
    """Search from where the journal ends, and write the bundle."""
    stopped = ""
    try:
        measured = _search(request.goal, evaluator)
    except (KeyboardInterrupt, TrainingInterruptedError):
        stopped = "interrupted"
        evaluator.progress("interrupted; the best candidate so far is kept (Ctrl-C again: not even that)")
        measured = evaluator.measure_best()
    except Exception as error:  # of the file system or of PyTorch, too: what is measured is not lost
        if not evaluator.trials:
            raise
        stopped = f"the search failed ({error})"
        evaluator.progress(f"{stopped}; the best candidate so far is kept")
        measured = []
        with suppress(Exception):  # the first error counts
            measured = evaluator.measure_best()
        if not measured:
            raise
    return _finish(request, evaluator, measured, source, stopped)


def _read_data(request: SearchRequest, task: Task, tokenizer: TextTokenizer) -> SearchData:
    return read_search_data(
        task, tokenizer, request.train, request.unlabelled, request.dev, request.test, request.columns,
        request.settings.gate_fraction, request.settings.seed,
    )  # fmt: skip


def _prepare(
    request: SearchRequest,
    source: Checkpoint,
    task: Task,
    data: SearchData,
    journal: Journal,
    progress: Callable[[str], None],
) -> CandidateEvaluator:
    """Measure the uncompressed model: its bundle, the importance of its parts, and the latency of their shapes."""
    rows = f"{len(data.search)} dev rows for the search, {len(data.gate)} for the gate"
    progress(f"searching for a model {request.goal}; {rows}")
    if data.num_left_out:
        progress(f"warning: {data.num_left_out} rows are left out, since the gate has their texts, too")
    if journal.is_resumed:
        progress(f"going on with the search in {request.folder}, {journal.elapsed_s:.0f} s of which are over")
    start_s = journal.elapsed_s
    tokenizer = source.text_tokenizer(request.settings.max_tokens, task.windows)
    reference = open_reference(request, data, tokenizer, data.write(request.folder).given, progress)
    reference.tune_threshold(data.search)
    for examples in (data.search, data.gate):
        reference.check_metric(examples)
    export_s = journal.remember("seconds of an export", lambda: journal.elapsed_s - start_s)
    progress("measuring the importance of layers and neurons")
    surgeon = Surgeon(source, task, data, request.settings.max_tokens)
    percents = kept_percents(source, task, request.settings.prune_tokens, reference.lengths, progress)
    measured = journal.remember(
        "latencies", lambda: measure_table(surgeon.model, reference, data, percents, progress).to_json()
    )
    table = LatencyTable.from_json(measured, reference.lengths)
    copies = request.settings.copies
    if copies is None:  # the rows must be the same where a search goes on with another budget
        copies = journal.remember("copies", lambda: num_copies(len(data.given), request.settings.budget_s))
    augmented = augment(data, surgeon.model, tokenizer, copies, request.settings.seed, progress)
    return CandidateEvaluator(
        folder=request.folder, journal=journal, settings=request.settings, data=augmented,
        files=augmented.write(request.folder), surgeon=surgeon, table=table, reference=reference,
        reserve_s=2 * export_s, progress=progress, percents=percents,
    )  # fmt: skip


def _search(goal: Goal, evaluator: CandidateEvaluator) -> list[Measured]:
    if goal.speedup is not None:
        if not evaluator.pool(goal.speedup):
            fastest = evaluator.max_speedup()  # only now: the pool has timed the shapes that seemed fast enough
            evaluator.journal.finish()
            raise CompressionError(
                f"{goal.speedup:g}× cannot be reached: the fastest candidate is predicted to be {fastest:.2f}× as fast "
                "as the uncompressed INT8 on the texts of dev; ask for less, with --force"
            )
        return within_speed(evaluator, goal.speedup)
    assert goal.max_drop is not None
    fastest = evaluator.max_speedup()
    ladder = speed_ladder(fastest)
    if not ladder:
        evaluator.journal.finish()
        raise CompressionError(
            f"nothing to gain: the fastest candidate is predicted to be {fastest:.2f}× as fast as the uncompressed "
            "INT8 on the texts of dev"
        )
    return fastest_within_drop(evaluator, ladder, goal.max_drop)


def _finish(
    request: SearchRequest,
    evaluator: CandidateEvaluator,
    measured: list[Measured],
    source: Checkpoint,
    stopped: str,
) -> CompressionResult:
    """Let the gate judge, and write the bundle: to the output if it passes, else into the folder of the search.

    Args:
        request: what is searched for.
        evaluator: has the measurements.
        measured: the bundles to choose from.
        source: the uncompressed checkpoint.
        stopped: why the search ended early; empty if it did not.
    """
    journal = evaluator.journal

    def compare(bundle: Path) -> dict[str, Any]:
        drop = evaluator.reference.compare(bundle, evaluator.data.gate)
        return drop_to_json(drop)

    def judge(found: Measured) -> dict[str, Any]:
        bundle = request.folder / evaluator.measurements(found.trial)["bundle"]
        evaluator.progress(f"judging {found.trial.candidate.name} on {len(evaluator.data.gate)} rows of the gate")
        return remember_gate(journal, found.trial.checkpoint, lambda: compare(bundle))

    choice = choose(request.goal, measured, judge)
    if choice is None:
        what = "exported" if evaluator.trials else "trained"
        why = "no candidate could be trained and exported"
        if stopped:
            why = f"{stopped} before a candidate was {what}"
        elif not journal.count("train "):
            why = "no candidate is fast enough: those that were predicted to be were not when they were timed"
        if not stopped:
            journal.finish()
        raise CompressionError(f"{why}; see {request.folder / JOURNAL_NAME}")
    if stopped:
        choice = replace(choice, passed=False, reason=f"{stopped}; the best so far: {choice.reason}")
    found = evaluator.measurements(choice.measured.trial)
    record = compression_record(request, evaluator, choice, found, source)
    bundle = request.output if choice.passed else request.folder / _BEST
    checkpoint = request.folder / found["checkpoint"]
    given, max_tokens = evaluator.files.given, request.settings.max_tokens
    command = export_command(checkpoint, bundle, None, None, calibrate=given, max_tokens=max_tokens)
    write_bundle(
        request.folder / found["bundle"], bundle, record, source, command, force=request.force or not choice.passed
    )
    if not stopped:
        journal.finish()
    rows = [_row(evaluator, item) for item in measured]
    return CompressionResult(
        passed=choice.passed,
        reason=choice.reason,
        bundle=bundle,
        checkpoint=checkpoint,
        task=check_task(source),
        record=record,
        measured=pareto_rows(rows),
    )


def _row(evaluator: CandidateEvaluator, measured: Measured) -> dict[str, Any]:
    """Return a measured candidate as a row of the Pareto table."""
    found = evaluator.measurements(measured.trial)
    candidate = measured.trial.candidate
    pruning = candidate.shape.token_pruning
    size = {
        "layers": list(candidate.layers),
        "intermediate_size": candidate.intermediate_size,
        "token_pruning": None if pruning is None else str(pruning),
    }
    return {"name": candidate.name, **size, **found["time"], **found["search"]}
