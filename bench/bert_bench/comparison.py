"""A bundle beside every peer: prepare, check, measure."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.benchmark import instruction_set_notes, measured_fields
from bert_bench.checkpoints import find_checkpoint
from bert_bench.comparison_request import ComparisonRequest
from bert_bench.conditions import BackgroundLoad, busy_notes, current_conditions
from bert_bench.engine_selection import EngineSelection
from bert_bench.fidelity import check_fidelity
from bert_bench.interleaved_timing import METHOD, measure, measure_concurrency
from bert_bench.mlperf_loadgen.measure_loadgen import measure_loadgen
from bert_bench.reports.build_report import concurrency_reports, require_psutil
from bert_bench.reports.report import Report
from bert_bench.workers.artifact_cache import ArtifactCache
from bert_bench.workers.engine_pool import EnginePool
from bert_bench.workers.worker_process import WorkerProcess
from bert_runtime import Manifest
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.machine import available_cores

__all__ = ["compare_engines"]

Progress = Callable[[str], None]


def compare_engines(request: ComparisonRequest, progress: Progress = lambda stage: None) -> Report:
    """Measures the bundle's variants beside the peers, on this machine, now.

    Every engine's files are made in its own environment and kept below the cache, so that the next run has them. An
    engine that cannot be installed, prepared or run, or that computes something else than the reference, is listed in
    `Report.not_run` with its reason.

    Raises:
        BenchError: no engine runs, the checkpoint cannot be read, or the bundle computes something else.
        BundleError, DataError: the bundle or a file is at fault.
        MissingExtraError: psutil is not installed.
    """
    require_psutil()
    begin = monotonic()
    conditions = current_conditions(request.settings.threads or available_cores())
    candidates = _candidates(request, conditions.threads, progress)
    with EnginePool() as engine_pool:
        ready = list(candidates.ready(engine_pool))
        measured = _measured(request, candidates, ready, engine_pool, progress)
    notes = (*instruction_set_notes(candidates.manifest), *busy_notes(conditions, measured["others_share"]))
    return Report(
        bundle=request.bundle or Path("bundle"),
        checkpoint=Path(request.checkpoint),
        task=candidates.manifest.task.name,
        labelled=request.labelled,
        method=METHOD,
        settings=asdict(request.settings),
        conditions=conditions,
        duration_s=round(monotonic() - begin, 1),
        **{**measured, "notes": (*measured["notes"], *notes)},
    )


def _candidates(request: ComparisonRequest, threads: int, progress: Progress) -> EngineSelection:
    """Reads the checkpoint, exports it where no bundle was given, and says where everything else will be made."""
    progress("reading the checkpoint")
    sha256 = None
    if request.bundle is not None:
        _, sha256 = find_checkpoint(Manifest.read(request.bundle), None)
    with WorkerProcess() as worker:
        facts = worker.call("check_checkpoint", request.checkpoint, sha256)
    cache = request.cache.resolve()
    artifact_cache = ArtifactCache(cache=cache, checkpoint_key=facts.key, texts=(), progress=progress)
    bundle = (request.bundle or artifact_cache.made("bundle", "export_bundle", facts.path)).resolve()
    manifest = Manifest.read(bundle)
    return EngineSelection(
        request=request,
        facts=facts,
        manifest=manifest,
        artifact_cache=ArtifactCache(
            cache=cache,
            checkpoint_key=facts.key,
            texts=request.calibration(manifest.task),
            progress=progress,
        ),
        common={"bundle": bundle, "threads": threads, "max_batch_tokens": request.settings.max_batch_tokens},
    )


def _measured(
    request: ComparisonRequest,
    candidates: EngineSelection,
    ready: list[Any],
    engine_pool: EnginePool,
    progress: Progress,
) -> dict[str, Any]:
    """Starts the engines, compares their outputs, measures them; the measured fields of the report."""
    settings, manifest, threads = request.settings, candidates.manifest, candidates.common["threads"]
    task, tokenizer = manifest.task, bundle_tokenizer(candidates.common["bundle"], manifest)
    workload, examples = request.workload(task, tokenizer), request.examples(task, tokenizer)
    probes = [each for example in examples for each in example.inputs] or request.probes(task, tokenizer)
    short = request.short_texts(task, tokenizer)
    others = BackgroundLoad()
    for spec, environment in ready:
        progress(f"loading {spec.name}")
        engine_pool.start(spec, short[0], settings.loads, environment)
    progress("comparing outputs")
    own = {each.name for each in engine_pool.running if each.spec.own}
    fidelity = check_fidelity(engine_pool, task, tokenizer, probes, examples=examples, own=own)
    peaks = _peaks(threads, settings.peak_s, progress)
    measure(engine_pool, workload, settings, progress)
    fields = measured_fields(engine_pool, workload, fidelity, candidates.facts.size)
    if "concurrent" in request.workloads:
        measure_concurrency(engine_pool, short, settings, progress)
        fields["callers"] = concurrency_reports(engine_pool.running, settings, len(short))
    if "loadgen" in request.workloads:
        fields["loadgen"] = measure_loadgen(engine_pool, candidates.artifact_cache, short, settings, progress)
    again = _peaks(threads, settings.peak_s, progress)
    peaks = {name: max(peak, again.get(name, 0.0)) for name, peak in peaks.items()}
    return {**fields, "peaks_gflops": peaks, "others_share": others.share(), "notes": workload.notes}


def _peaks(threads: int, seconds: float, progress: Progress) -> dict[str, float]:
    """GFLOP/s of large matrix products, in a process that is gone afterwards."""
    progress("measuring the peak of large matrix products")
    with WorkerProcess() as worker:
        found: dict[str, float] = worker.call("measure_gemm_peaks", threads, seconds)
    return found
