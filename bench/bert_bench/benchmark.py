"""The benchmark of one bundle: its variants vs. PyTorch and ONNX Runtime's plain export."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.background_load import busy_notes
from bert_bench.checkpoints import EncoderSize, find_checkpoint
from bert_bench.conditions import current_conditions
from bert_bench.engines import BundleSpec, EngineSpec
from bert_bench.engines.onnxruntime_plain import PLAIN_EXPORT, PlainExportSpec
from bert_bench.engines.pytorch import EAGER, PyTorchSpec
from bert_bench.errors import BenchError
from bert_bench.fidelity import Fidelity, check_fidelity
from bert_bench.interleaved_timing import METHOD, measure_cases
from bert_bench.json_fields import to_json_values
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
"""Number of texts of the throughput workload on which outputs are compared."""


def bench_bundle(
    bundle: Path,
    *,
    checkpoint: str | Path | None = None,
    texts: Sequence[str] | None = None,
    settings: Settings | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Benchmark a bundle's variants vs. PyTorch and ONNX Runtime's plain export on this machine, now.

    Timings are interleaved; `Report.method` states how. An engine that cannot run is listed in `Report.not_run` with
    its reason.

    Args:
        bundle: the directory that `bert-export export` wrote.
        checkpoint: the checkpoint that PyTorch and ONNX Runtime run, a folder or a hub id; by default the bundle's
            source, if it is still there unchanged.
        texts: the throughput workload; by default synthetic messages of mixed lengths, about 24 tokens each.
        settings: what to measure and how often; `Settings.quick()` for a first impression.
        progress: called with a line at the start of each stage.

    Raises:
        BundleError: not a bundle.
        BenchError: no engine runs, the given `checkpoint` cannot be used, or outputs differ between engines.
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
        spec_fields: dict[str, Any] = {
            "bundle": bundle,
            "threads": conditions.threads,
            "max_batch_tokens": settings.max_batch_tokens,
        }
        specs: list[EngineSpec] = [
            BundleSpec(variant=variant.precision, **spec_fields) for variant in manifest.variants_for("cpu")
        ]
        specs += _compared_specs(manifest, checkpoint, Path(scratch), spec_fields, engine_pool, progress)
        for spec in specs:
            progress(f"loading {spec.name}")
            engine_pool.start(spec, workload.singles[0].texts[0], settings.starts)
        progress("comparing outputs")
        fidelity = check_fidelity(engine_pool, manifest.task, tokenizer, workload.offline[0].texts[:PROBE_TEXTS])
        measure_cases(engine_pool, workload, settings, progress)
        measured = measured_fields(engine_pool, workload, fidelity)
    return Report(
        bundle=bundle,
        task=manifest.task.name,
        **measured,
        method=METHOD,
        settings=to_json_values(settings),
        conditions=conditions,
        duration_s=round(monotonic() - begin, 1),
        notes=(*workload.notes, *instruction_set_notes(manifest), *busy_notes(conditions, None)),
    )


def _compared_specs(
    manifest: Manifest,
    given: str | Path | None,
    scratch: Path,
    spec_fields: dict[str, Any],
    engine_pool: EnginePool,
    progress: Callable[[str], None],
) -> list[EngineSpec]:
    """Return the compared engines that can run; the others go to `engine_pool.failures` with the reason.

    A worker checks and exports the checkpoint, so that this process never loads PyTorch.
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
        if given is not None:  # a checkpoint that was asked for by name must not end up as a footnote
            raise
        engine_pool.failures.update({EAGER.name: str(error), PLAIN_EXPORT.name: str(error)})
        return []
    specs: list[EngineSpec] = [PyTorchSpec(config=EAGER, checkpoint=checkpoint, **spec_fields)]
    if PLAIN_EXPORT.name not in engine_pool.failures:
        specs.append(PlainExportSpec(config=PLAIN_EXPORT, graph=graph, **spec_fields))
    return specs


def measured_fields(
    engine_pool: EnginePool, workload: Workload, fidelity: dict[str, Fidelity], size: EncoderSize | None = None
) -> dict[str, Any]:
    """Return the measured fields of a `Report` from the samples of the running engines.

    Args:
        engine_pool: the engines with their samples; their processes must still run.
        workload: the cases that were timed.
        fidelity: fidelity by engine.
        size: the encoder's size, for FLOPs.

    Raises:
        BenchError: no engine is left.
    """
    if not engine_pool.running:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in engine_pool.failures.items())
        raise BenchError(f"no engine could be measured: {reasons}")
    baseline = choose_baseline([engine.name for engine in engine_pool.running])
    shapes, singles, stages, offline = (
        tuple(case_report(case, engine_pool.running, baseline, size) for case in cases)
        for cases in (workload.shapes, workload.singles, workload.stages, workload.offline)
    )
    return {
        "engines": tuple(engine_report(engine, fidelity.get(engine.name)) for engine in engine_pool.running),
        "not_run": dict(engine_pool.failures),
        "baseline": baseline,
        "shapes": shapes,
        "singles": singles,
        "stages": stages,
        "offline": offline,
        "latency_breakdowns": latency_breakdowns(singles[0], *stages) if singles and stages else {},
    }


def instruction_set_notes(manifest: Manifest) -> list[str]:
    """Return a note for each variant that needs an instruction set which this CPU lacks."""
    return [
        f"This processor lacks {variant.instruction_set}, which {variant.precision} was made for: kernels are slower."
        for variant in manifest.variants_for("cpu")
        if not has_instruction_set(variant.instruction_set)
    ]
