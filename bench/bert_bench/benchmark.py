"""One benchmark run, from bundle to report."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.checkpoints import EncoderSize, find_checkpoint
from bert_bench.conditions import busy_notes, current_conditions
from bert_bench.engines import BundleSpec, EngineSpec
from bert_bench.engines.onnxruntime_plain import PLAIN_EXPORT, PlainExportSpec
from bert_bench.engines.pytorch import EAGER, PyTorchSpec
from bert_bench.errors import BenchError
from bert_bench.fidelity import Fidelity, check_fidelity
from bert_bench.interleaved_timing import METHOD, measure
from bert_bench.reports.build_report import (
    case_report,
    choose_baseline,
    engine_report,
    latency_breakdowns,
    require_psutil,
)
from bert_bench.reports.report import Report
from bert_bench.settings import Settings
from bert_bench.workers.engine_pool import EnginePool
from bert_bench.workers.worker_process import WorkerProcess
from bert_bench.workloads import SYNTHETIC, Workload, build_workload
from bert_runtime import Manifest
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.machine import available_cores, has_instruction_set

__all__ = ["PROBE_TEXTS", "bench_bundle", "instruction_set_notes", "measured_fields"]

PROBE_TEXTS = 64
"""Texts of the throughput workload on which the engines' outputs are compared."""


def bench_bundle(
    bundle: Path,
    *,
    checkpoint: str | Path | None = None,
    texts: Sequence[str] | None = None,
    settings: Settings | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Measures the bundle's variants beside PyTorch and ONNX Runtime's plain export, on this machine, now.

    Args:
        bundle: the directory that `bert-export export` wrote.
        checkpoint: what to run in the peers, a folder or a hub id; by default the bundle's source, if it is still there
            unchanged.
        texts: the throughput workload; by default messages of mixed lengths, about 24 tokens each.
        settings: what to measure and how often; `Settings.quick()` for a first impression.
        progress: called with a line at the start of each stage.

    An engine that cannot run is listed in `Report.not_run` with its reason.

    Raises:
        BundleError: not a bundle.
        BenchError: no engine runs, the `checkpoint` given cannot, or FP32 engines do not compute the same.
        MissingExtraError: psutil is not installed.
    """
    settings = settings or Settings()
    require_psutil()
    begin = monotonic()
    manifest = Manifest.read(bundle)
    conditions = current_conditions(settings.threads or available_cores())
    tokenizer = bundle_tokenizer(bundle, manifest)
    workload = build_workload(manifest.task, tokenizer, {} if texts is None else {SYNTHETIC: texts}, settings)
    with EnginePool() as engine_pool, tempfile.TemporaryDirectory(prefix="bert-bench-") as scratch:
        common: dict[str, Any] = {
            "bundle": bundle,
            "threads": conditions.threads,
            "max_batch_tokens": settings.max_batch_tokens,
        }
        specs: list[EngineSpec] = [
            BundleSpec(variant=each.precision, **common) for each in manifest.variants_for("cpu")
        ]
        specs += _peers(manifest, checkpoint, Path(scratch), common, engine_pool, progress)
        for spec in specs:
            progress(f"loading {spec.name}")
            engine_pool.start(spec, workload.singles[0].texts[0], settings.loads)
        progress("comparing outputs")
        fidelity = check_fidelity(engine_pool, manifest.task, tokenizer, workload.offline[0].texts[:PROBE_TEXTS])
        measure(engine_pool, workload, settings, progress)
        measured = measured_fields(engine_pool, workload, fidelity)
    return Report(
        bundle=bundle,
        task=manifest.task.name,
        **measured,
        method=METHOD,
        settings=asdict(settings),
        conditions=conditions,
        duration_s=round(monotonic() - begin, 1),
        notes=(*workload.notes, *instruction_set_notes(manifest), *busy_notes(conditions, None)),
    )


def _peers(
    manifest: Manifest,
    given: str | Path | None,
    scratch: Path,
    common: dict[str, Any],
    engine_pool: EnginePool,
    progress: Callable[[str], None],
) -> list[EngineSpec]:
    """The peers that can run; of those that cannot, the line-up gets the reason.

    Checking and exporting happen in a worker, so that this process never loads PyTorch.
    """
    graph = scratch / "model.onnx"
    try:
        name, sha256 = find_checkpoint(manifest, given)
        progress("reading the checkpoint")
        with WorkerProcess() as worker:
            checkpoint = worker.call("check_checkpoint", name, sha256).path
            progress("exporting it without fusions")
            with engine_pool.drop_on_failure(PLAIN_EXPORT.name, "while exporting"):
                worker.call("export_plain_graph", checkpoint, manifest.task, graph)
    except BenchError as error:
        if given is not None:  # what was asked for by name must not end as a footnote
            raise
        engine_pool.failures.update({EAGER.name: str(error), PLAIN_EXPORT.name: str(error)})
        return []
    peers: list[EngineSpec] = [PyTorchSpec(config=EAGER, checkpoint=checkpoint, **common)]
    return (
        peers
        if PLAIN_EXPORT.name in engine_pool.failures
        else [*peers, PlainExportSpec(config=PLAIN_EXPORT, graph=graph, **common)]
    )


def measured_fields(
    engine_pool: EnginePool, workload: Workload, fidelity: dict[str, Fidelity], size: EncoderSize | None = None
) -> dict[str, Any]:
    """The measured fields of the report; raises `BenchError` where no engine is left."""
    if not engine_pool.running:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in engine_pool.failures.items())
        raise BenchError(f"no engine could be measured: {reasons}")
    baseline = choose_baseline([each.name for each in engine_pool.running])
    shapes, singles, stages, offline = (
        tuple(case_report(case, engine_pool.running, baseline, size) for case in cases)
        for cases in (workload.shapes, workload.singles, workload.stages, workload.offline)
    )
    return {
        "engines": tuple(engine_report(each, fidelity.get(each.name)) for each in engine_pool.running),
        "not_run": dict(engine_pool.failures),
        "baseline": baseline,
        "shapes": shapes,
        "singles": singles,
        "stages": stages,
        "offline": offline,
        "splits": latency_breakdowns(singles[0], *stages) if singles and stages else {},
    }


def instruction_set_notes(manifest: Manifest) -> list[str]:
    """Variants whose numbers are weaker than they look."""
    return [
        f"This processor has no {each.instruction_set}, which {each.precision} was made for: it runs in slower kernels."
        for each in manifest.variants_for("cpu")
        if not has_instruction_set(each.instruction_set)
    ]
