"""A comparison of a bundle with many engines: prepare, check, measure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.background_load import busy_notes, process_tree_cpu_s
from bert_bench.benchmark import instruction_set_notes, measured_fields
from bert_bench.comparison_request import ComparisonRequest
from bert_bench.conditions import current_conditions
from bert_bench.engine_selection import EngineSelection, uncompressed_sha256
from bert_bench.engines import EngineSpec
from bert_bench.engines.registry import COMPARED_ENGINES
from bert_bench.fidelity import REFERENCE_ENGINES, check_fidelity
from bert_bench.interleaved_timing import METHOD, measure_cases, measure_concurrency
from bert_bench.json_fields import to_json_values
from bert_bench.mlperf_loadgen.measure_loadgen import measure_loadgen
from bert_bench.reports.build_report import concurrency_reports, require_psutil
from bert_bench.reports.report import Report
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool
from bert_bench.workers.environments import Environment
from bert_bench.workers.worker_process import WorkerProcess
from bert_export.background_load import BackgroundLoad
from bert_runtime import Manifest
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.machine import available_cores

__all__ = ["compare_engines"]

Progress = Callable[[str], None]

_OTHER_REFERENCES = [name for name in REFERENCE_ENGINES if name in COMPARED_ENGINES]
"""References that are not the bundle's own."""

_COMPRESSED_NOTE = "bert-export runs a model that was compressed from the one that the other engines run."


def compare_engines(request: ComparisonRequest, progress: Progress = lambda stage: None) -> Report:
    """Compare the bundle's variants with other engines on this machine, now.

    Each engine's files are made in its own environment and kept in the cache for the next run. An engine that cannot be
    installed, prepared or run, or whose outputs differ from the reference's, is listed in `Report.not_run` with its
    reason. `bert_bench.interleaved_timing.METHOD` states how times are taken.

    Args:
        request: what to compare.
        progress: called with a line at the start of each stage.

    Raises:
        BenchError: no engine runs, the checkpoint cannot be read, or the bundle's outputs differ from the reference's.
        BundleError: the bundle cannot be read.
        DataError: a file of texts or examples cannot be read.
        MissingExtraError: psutil is not installed.
    """
    require_psutil()
    begin = monotonic()
    conditions = current_conditions(request.settings.threads or available_cores())
    selection = _select_engines(request, conditions.threads, progress)
    with EnginePool() as engine_pool:
        specs = list(selection.prepared_specs(engine_pool))
        measured = _measure(request, selection, specs, engine_pool, progress)
    notes = (
        *([_COMPRESSED_NOTE] if selection.is_compressed else []),
        *instruction_set_notes(selection.manifest),
        *busy_notes(conditions, measured["background_load"]),
    )
    return Report(
        bundle=request.bundle or Path("bundle"),
        checkpoint=Path(request.checkpoint),
        task=selection.manifest.task.name,
        labelled=request.labelled,
        method=METHOD,
        settings=to_json_values(request.settings),
        conditions=conditions,
        encoder=selection.checkpoint.size,
        given_title=request.title,
        duration_s=round(monotonic() - begin, 1),
        **{**measured, "notes": (*measured["notes"], *notes)},
    )


def _select_engines(request: ComparisonRequest, threads: int, progress: Progress) -> EngineSelection:
    """Check the checkpoint, export it if no bundle was given, and return the selection of engines."""
    progress("reading the checkpoint")
    sha256 = uncompressed = None
    if request.bundle is not None:
        given = Manifest.read(request.bundle)
        sha256, uncompressed = given.source.get("sha256"), uncompressed_sha256(given)
    with WorkerProcess() as worker:
        checkpoint = worker.call("check_checkpoint", request.checkpoint, sha256, uncompressed)
    cache = request.cache.resolve()
    artifact_cache = ArtifactCache(cache=cache, checkpoint_key=checkpoint.key, texts=(), progress=progress)
    bundle = (request.bundle or artifact_cache.artifact("bundle", "export_bundle", checkpoint.path)).resolve()
    manifest = Manifest.read(bundle)
    return EngineSelection(
        request=request,
        checkpoint=checkpoint,
        manifest=manifest,
        artifact_cache=replace(artifact_cache, texts=request.calibration(manifest.task)),
        spec_fields={"bundle": bundle, "threads": threads, "max_batch_tokens": request.settings.max_batch_tokens},
    )


def _measure(
    request: ComparisonRequest,
    selection: EngineSelection,
    specs: Sequence[tuple[EngineSpec, Environment | None]],
    engine_pool: EnginePool,
    progress: Progress,
) -> dict[str, Any]:
    """Start the engines, compare their outputs and time them; return the measured fields of the report."""
    settings, manifest, threads = request.settings, selection.manifest, selection.spec_fields["threads"]
    task, tokenizer = manifest.task, bundle_tokenizer(selection.spec_fields["bundle"], manifest)
    workload, examples = request.workload(task, tokenizer), request.examples(task, tokenizer)
    probes = [text for example in examples for text in example.inputs] or request.probes(task, tokenizer)
    short = request.short_texts(task, tokenizer)
    background_load = BackgroundLoad(process_tree_cpu_s)
    for spec, environment in specs:
        progress(f"loading {spec.name}")
        engine_pool.start(spec, short[0], settings.starts, environment)
    untimed = None
    if not any(engine.name in _OTHER_REFERENCES for engine in engine_pool.running):  # nothing to check the bundle by
        progress("loading pytorch, for its outputs alone")
        untimed = selection.reference_spec()
        engine_pool.start(untimed, short[0], 1)
    progress("comparing outputs")
    bundle_engines = {engine.name for engine in engine_pool.running if engine.spec.is_bundle}
    fidelity = check_fidelity(
        engine_pool, task, tokenizer, probes, examples=examples, must_agree=bundle_engines,
        other_model=bundle_engines if selection.is_compressed else (),
    )  # fmt: skip
    if untimed is not None:
        engine_pool.stop(untimed.name)
    peaks = _gemm_peaks(threads, settings.gemm_peak_s, progress)
    measure_cases(engine_pool, workload, settings, progress)
    fields = measured_fields(engine_pool, workload, fidelity, selection.checkpoint.size)
    if "concurrent" in request.workloads:
        measure_concurrency(engine_pool, short, settings, progress)
        fields["concurrency"] = concurrency_reports(engine_pool.running, settings, len(short))
    if "loadgen" in request.workloads:
        fields["loadgen"] = measure_loadgen(engine_pool, selection.artifact_cache, short, settings, progress)
    final_peaks = _gemm_peaks(threads, settings.gemm_peak_s, progress)
    peaks = {name: max(peak, final_peaks.get(name, 0.0)) for name, peak in peaks.items()}
    return {
        **fields,
        "peaks_gflops": peaks,
        "background_load": background_load.fraction(),  # before the workers end
        "notes": workload.notes,
    }  # fmt: skip


def _gemm_peaks(threads: int, duration_s: float, progress: Progress) -> dict[str, float]:
    """Return the peak GFLOP/s of large matmuls by precision, measured in a process that ends afterwards."""
    progress("measuring the peak of large matmuls")
    with WorkerProcess() as worker:
        peaks: dict[str, float] = worker.call("measure_gemm_peaks", threads, duration_s)
    return peaks
