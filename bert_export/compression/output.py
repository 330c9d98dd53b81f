"""Write the bundle of a search, with what was done in its manifest and its card."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bert_export.compression.evaluator import CandidateEvaluator
from bert_export.compression.gate import Choice
from bert_export.compression.preparation import SearchRequest
from bert_export.compression_summary import COMPRESSION_KEY, describe_compression
from bert_export.errors import ExportError
from bert_export.model_card import model_card
from bert_export.source_card import read_source_card
from bert_models import Checkpoint
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.contents import CARD_NAME, replacement_problem
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest
from bert_runtime.verification import failed_checks, verify

__all__ = ["compression_record", "write_bundle"]


def compression_record(
    request: SearchRequest, evaluator: CandidateEvaluator, choice: Choice, found: Mapping[str, Any], source: Checkpoint
) -> dict[str, Any]:
    """Return what was done to the uncompressed model, as JSON values."""
    config, trial = source.config, choice.measured.trial
    candidate = trial.candidate
    goal, settings, pruning = request.goal, request.settings, candidate.shape.token_pruning
    return {
        "goal": {name: value for name, value in vars(goal).items() if value is not None},
        "passed": choice.passed,
        "reason": choice.reason,
        "uncompressed": {"path": source.name, "sha256": source.sha256()},
        "layers_kept": list(candidate.layers),
        "num_layers_before": config.num_layers,
        "intermediate_size": candidate.intermediate_size,
        "intermediate_size_before": config.intermediate_size,
        "narrowed_from": trial.narrowed_from,
        "token_pruning": None if pruning is None else str(pruning),
        "vocabulary": found["vocabulary"],
        "max_tokens": settings.max_tokens,
        "train_rows": {
            "labelled": len(evaluator.data.train),
            "unlabelled": len(evaluator.data.unlabelled),
            "copies": max(trial.num_rows - len(evaluator.data.given), 0),
        },
        "time": dict(found["time"]),
        "search": dict(found["search"]),
        "gate": {**choice.gate, "attempts": choice.attempts},
        "latencies": evaluator.table.to_json(),
        "seconds": round(evaluator.journal.elapsed_s, 1),
        "seed": settings.seed,
    }


def write_bundle(
    bundle: Path, output: Path, record: Mapping[str, Any], source: Checkpoint, command: str, *, force: bool
) -> None:
    """Copy an exported bundle, add the record to its manifest, write a card of its own, and verify it.

    Args:
        bundle: the bundle in the folder of the search.
        output: the bundle to write; the card names it.
        record: what was done to the uncompressed model, see `compression_record`.
        source: the uncompressed checkpoint, from which the card inherits.
        command: the command that exports the bundle.
        force: whether a bundle at `output` may be replaced.

    Raises:
        ExportError: the copy fails its verification.
        BertError: `output` exists.
    """
    manifest = Manifest.read(bundle)
    manifest = replace(manifest, extra={**manifest.extra, COMPRESSION_KEY: dict(record)})
    lines = "".join(f"- {line}\n" for line in describe_compression(record))
    card = model_card(manifest, read_source_card(source), command, output.name)
    with atomic_replace_dir(output, partial(replacement_problem, output, force=force)) as folder:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        (folder / CARD_NAME).write_text(f"{card}\n## Compression\n\n{lines}", encoding="utf-8")
        if failed := failed_checks(verify(folder)):
            raise ExportError(f"the compressed bundle fails its own verification: {'; '.join(failed)}")
