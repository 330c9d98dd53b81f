"""The data of a bundle's report: what its manifest records, and what is measured on this machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bert_export.background_load import BackgroundLoad
from bert_export.compression_summary import COMPRESSION_KEY, PRUNING_KEY, describe_compression, describe_pruning
from bert_export.latency import median_latencies_ms
from bert_export.report.evaluation import Evaluation, evaluate_variants
from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.errors import BundleError
from bert_runtime.loading import load
from bert_runtime.machine import describe, installed_versions
from bert_runtime.model import Model
from bert_runtime.plan import Plan, tuned_plan
from bert_runtime.variant_choice import can_run, cpu_plan
from bert_runtime.verification import Check, failed_checks, verify

__all__ = ["Latency", "Report", "VariantRecord", "measure_report"]

_LENGTHS = (8, 16, 32, 64, 128, 256, 512)
"""Tokens of the single inputs that are timed."""


@dataclass(frozen=True, kw_only=True)
class VariantRecord:
    """A variant as the manifest records it."""

    title: str
    precision: str
    target: str
    files: tuple[str, ...]
    size_bytes: int
    opset: int
    instruction_set: str | None
    fusions: Mapping[str, Mapping[str, int]]
    functions: Mapping[str, int]
    int8_flops_share: float
    quantization: Mapping[str, Any]
    kept_fp32: int
    """Number of values that an FP16 graph computes in FP32."""
    evaluated_on: str
    parity: Mapping[str, Any]
    drift: Mapping[str, Any]
    metrics: Mapping[str, Any]
    latency_ms: Mapping[str, float]
    faithful: bool

    @classmethod
    def of(cls, variant: Variant) -> "VariantRecord":
        """Return the record of a variant."""
        copied = (
            "title", "precision", "target", "size_bytes", "opset", "instruction_set", "fusions", "functions",
            "int8_flops_share", "quantization", "evaluated_on", "parity", "drift", "metrics", "latency_ms", "faithful",
        )  # fmt: skip
        return cls(
            files=tuple(asset.file for asset in variant.assets),
            kept_fp32=len(variant.kept_fp32),
            **{name: getattr(variant, name) for name in copied},
        )


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Median milliseconds of one input on this machine."""

    threads: int
    rounds: int
    tokens: tuple[int, ...]
    """Lengths that were timed."""
    medians_ms: Mapping[str, tuple[float, ...]]
    """Medians in the order of `tokens`, by variant."""
    background_load: float | None
    """Fraction of the machine's CPU time that other processes took meanwhile; `None` if unknown."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a report shows."""

    bundle: str
    """Name of the bundle's folder."""
    created: str
    """Time in UTC, in ISO 8601."""
    bert_export: str
    """Release that made the report."""
    task: Mapping[str, Any]
    max_tokens: int
    source: Mapping[str, Any]
    versions: Mapping[str, str]
    exported_on: Mapping[str, Any]
    """The machine that made the bundle."""
    default_precision: str
    default_reason: str
    variants: tuple[VariantRecord, ...]
    machine: Mapping[str, Any]
    """This machine."""
    plan: str
    """How `load` runs the bundle on this machine's CPU."""
    runs_here: str
    """Title of the variant that `load` runs on this machine's CPU."""
    tuned: bool
    """Whether `bert-export tune` measured the plan."""
    native_kernels: tuple[str, ...]
    """Functions that this machine has native kernels for."""
    checks: tuple[Check, ...]
    """Result of `bert-export verify`."""
    latency: Latency
    evaluation: Evaluation | None
    """Measurements on a labelled file, if one was given."""
    compression: tuple[str, ...] = ()
    """How the model was compressed, in words; empty for one that was not."""


def measure_report(
    bundle: str | Path,
    *,
    evaluate: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    rounds: int = 15,
    progress: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Verify a bundle, time its CPU variants, and evaluate them on a labelled file.

    Args:
        bundle: the bundle's directory.
        evaluate: labelled file, see `bert_runtime.evaluation.evaluate`.
        columns: column names by field of that file.
        options: decoding options to evaluate with, see `Task.options`; by default the bundle's.
        threads: threads per operator of all variants, by default as `load` chooses them for the one that it runs.
        rounds: how often each length is timed, with the variants in turn.
        progress: called with a line at the start of each stage, and within long ones.

    Raises:
        BundleError: not a bundle, or a damaged one.
        DataError: the labelled file cannot be read, or is of another task.
        InputError: an option is unknown or out of range.
        MissingExtraError: onnxruntime is not installed.
    """
    path = Path(bundle)
    manifest = Manifest.read(path)
    progress("verifying the bundle")
    checks = _verified(path)
    plan = cpu_plan(manifest, tuned_plan(path), threads=threads)
    models = _open_models(path, manifest, plan, threads, options or {})
    evaluation = None
    if evaluate is not None:  # first, since it fails where the file does not fit
        evaluation = evaluate_variants(models, Path(evaluate), columns, progress)
    return Report(
        bundle=path.resolve().name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bert_export=installed_versions(["bert-export"]).get("bert-export", "unknown"),
        task=manifest.task.to_dict(),
        max_tokens=manifest.max_tokens,
        source=manifest.source,
        versions=manifest.versions,
        exported_on=manifest.machine,
        default_precision=manifest.default_precision,
        default_reason=manifest.default_reason,
        variants=tuple(map(VariantRecord.of, manifest.variants)),
        machine=describe(),
        plan=str(plan),
        runs_here=manifest.variant(plan.precision).title,
        tuned=tuned_plan(path) is not None,
        native_kernels=tuple(kernel_names()),
        checks=checks,
        latency=_time(models, plan.threads, rounds, progress),
        evaluation=evaluation,
        compression=(
            *describe_compression(manifest.extra.get(COMPRESSION_KEY) or {}),
            *(f"token pruning: {line}" for line in describe_pruning(manifest.extra.get(PRUNING_KEY) or {})),
        ),
    )


def _verified(bundle: Path) -> tuple[Check, ...]:
    """Return the checks of a bundle, or raise `BundleError` if one fails."""
    checks = tuple(verify(bundle))
    if failed := failed_checks(checks):
        raise BundleError(
            f"{bundle}: {len(failed)} of {len(checks)} checks failed ({'; '.join(failed)}); "
            "export the bundle again or make a new copy of it"
        )
    return checks


def _open_models(
    bundle: Path, manifest: Manifest, plan: Plan, threads: int | None, options: Mapping[str, Any]
) -> dict[str, Model]:
    """Open the CPU variants that this processor can run, by title; FP32, if there, comes first.

    All have the threads of the plan, which `tune` may have measured for one of them.
    """
    variants = [variant for variant in manifest.variants_for("cpu") if can_run(variant)]
    return {
        variant.title: load(
            bundle, precision=variant.precision, device="cpu", verify=False,
            threads=threads if variant.precision == plan.precision else plan.threads,
        ).with_options(**options)
        for variant in sorted(variants, key=lambda variant: variant.precision != "fp32")
    }  # fmt: skip


def _time(models: Mapping[str, Model], threads: int, rounds: int, progress: Callable[[str], None]) -> Latency:
    """Time one input of each length with each variant."""
    first = next(iter(models.values()))
    max_tokens = first.tokenizer.max_tokens
    tokens = tuple(length for length in _LENGTHS if length < max_tokens)
    if max_tokens <= _LENGTHS[-1]:
        tokens += (max_tokens,)
    progress(f"timing {', '.join(models)} at {', '.join(map(str, tokens))} tokens")
    runs = {title: model.session.run for title, model in models.items()}
    background_load = BackgroundLoad()
    medians = median_latencies_ms(runs, first.task, max_tokens, rounds, _shapes(tokens))
    return Latency(
        threads=threads,
        rounds=rounds,
        tokens=tokens,
        medians_ms={title: tuple(times.values()) for title, times in medians.items()},
        background_load=background_load.fraction(),
    )


def _shapes(tokens: Sequence[int]) -> list[tuple[int, int]]:
    return [(1, length) for length in tokens]
