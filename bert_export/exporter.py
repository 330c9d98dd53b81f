"""A checkpoint to a bundle: capture, fuse, quantize, verify, write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bert_export.capture import OPSET, check_opset, input_names
from bert_export.cuda import build_cuda
from bert_export.decision import Decision, choose_default, with_metrics
from bert_export.errors import ExportError, OutputExistsError
from bert_export.latency import median_latencies_ms
from bert_export.quantization import choose_weight_bits
from bert_export.samples import built_in_calibration, file_calibration
from bert_export.targets import WHY_FP16, graphs_for, paddings_for
from bert_export.tensorrt import build_tensorrt
from bert_export.variants import BuiltVariant, Probe, asset, build_fp32, build_int8
from bert_models import Checkpoint, load_model, open_checkpoint
from bert_models.files import unowned_files
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.manifest import MANIFEST_NAME, Manifest, TensorSpec
from bert_runtime.evaluation import build_examples
from bert_runtime.machine import describe, installed_versions
from bert_runtime.plan import TUNING_NAME
from bert_runtime.records import read_records
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.verification import verify

__all__ = ["export"]

_SELF_TESTS = 4
"""How many of the reference texts become self-test vectors."""

_BUNDLE_FILES = (MANIFEST_NAME, TUNING_NAME, "tokenizer.json", "model.*.onnx", "model.*.onnx.data")
"""What a bundle consists of, and so is replaced with it."""

_TOOLS = (
    "bert-export",
    "torch",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "numpy",
)


def export(
    checkpoint: str | Path,
    bundle: str | Path,
    *,
    task: str | None = None,
    targets: Sequence[str] = ("cpu",),
    precisions: Sequence[str] | None = None,
    max_tokens: int | None = None,
    dimensions: int | None = None,
    options: Mapping[str, Any] | None = None,
    opset: int | None = None,
    evaluate: str | Path | None = None,
    calibrate: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    max_drop: float = 1.0,
    weight_bits: int | None = None,
    paddings: Sequence[str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Exports a checkpoint to a bundle for the CPU, for CUDA, for TensorRT or for several, and returns its manifest.

    Args:
        checkpoint: a directory in the Hugging Face layout, or a hub id, see `bert_models.hub`.
        bundle: the directory to write; it appears whole when everything has passed, or not at all.
        task: the task, where the checkpoint does not say.
        targets: the devices to export for, `cpu`, `cuda` and `tensorrt`. No GPU is needed.
        precisions: variants to make; FP32 for the CPU is always among them, since the others are judged by it. By
            default also INT8 for the CPU, and FP16 for a GPU.
        max_tokens: longest sequence in tokens; by default the most that the checkpoint allows.
        dimensions: keep so many of an embedding's dimensions, the first ones, before it is normalised.
        options: how the bundle decodes, see `Task.options`; callers may still decode otherwise.
        opset: the version of ONNX's operators; only `OPSET` works, and others are refused with the reason.
        evaluate: a labelled file; the task metric on it decides whether INT8 may be the default.
        calibrate: a file of inputs like those that will come, for the ranges of INT8; labels are not read. By default
            texts that are built in, which serve less well.
        columns: field names to those of `evaluate` and `calibrate`, see `bert_runtime.records.read_records`.
        max_drop: how many points (hundredths) of the metric INT8 may lose on `evaluate`.
        weight_bits: bits of INT8's weights: 8, or 7, which is faster on processors without VNNI and less exact on all;
            by default 8, but 7 where layers share their weights, see `choose_weight_bits`.
        paddings: the paddings of each graph for CUDA, see `Variant` of the manifest: `masked`, which is always made,
            `unmasked` for large batches without padding, `packed` for large ones of mixed lengths; by default all.
        force: replace an existing bundle.
        progress: called with a line at the start of each stage.

    Raises:
        BertError: the checkpoint, the file, the fusion, the parity or the place to write is at fault.
    """
    target = Path(bundle)
    check_opset(OPSET if opset is None else opset)
    planned = graphs_for(targets, precisions)
    chosen_paddings = paddings_for(paddings, planned)
    _check_target(target, force=force)
    progress("reading the checkpoint")
    source = open_checkpoint(checkpoint)
    weight_bits = choose_weight_bits(source.config, weight_bits)
    chosen = _narrowed(source.task(task), dimensions).with_options(**(options or {}))
    tokenizer = source.text_tokenizer(max_tokens, chosen.windows)
    examples = None if evaluate is None else build_examples(chosen, tokenizer, read_records(evaluate, columns))
    calibration = built_in_calibration(chosen, tokenizer)
    self_test_inputs = calibration.inputs[:_SELF_TESTS]
    if calibrate is not None:
        calibration = file_calibration(Path(calibrate), columns, chosen, tokenizer)
    if examples is None:
        calibration, texts = calibration.split()
    else:
        texts = [each for example in examples for each in example.inputs]
    probe = Probe(tokenizer, texts, self_test_inputs, calibration)
    model = load_model(source, chosen)
    chosen = model.runtime_task()
    with atomic_replace_dir(target) as folder:
        built = [build_fp32(model, probe, folder, progress)]
        if "int8" in planned.cpu:
            built.append(build_int8(built[0], model, probe, folder, weight_bits, progress))
        built += build_cuda(built[0], model, probe, folder, planned.cuda, progress, paddings=chosen_paddings)
        built += build_tensorrt(
            built[0], model, probe, folder, planned.tensorrt, progress, exactly=precisions is not None
        )
        if examples is not None and evaluate is not None:
            built = with_metrics(chosen, built, examples, Path(evaluate))
        progress("timing the variants")
        built = _with_latencies(built, chosen, probe.tokenizer.max_tokens)
        decision = choose_default(chosen, [each for each in built if each.variant.target == "cpu"], max_drop)
        built = [
            each.with_measurements(
                faithful=each.variant.target == "cpu" and each.variant.precision in decision.faithful
            )
            for each in built
        ]
        if planned.cuda or planned.tensorrt:
            decision = decision._replace(reason=f"{decision.reason}; {WHY_FP16}")
        manifest = _write(folder, source, chosen, probe, built, decision)
        progress("verifying the bundle with the runtime")
        failed = [f"{check.name}: {check.detail}" for check in verify(folder) if not check.passed]
        if failed:
            raise ExportError(f"the finished bundle fails its own verification: {'; '.join(failed)}")
    return manifest


def _narrowed(task: Task, dimensions: int | None) -> Task:
    """The task with as many dimensions as asked for."""
    if dimensions is None:
        return task
    if not isinstance(task, SentenceEmbedding) or not 1 <= dimensions <= task.dimensions:
        most = f"1 to {task.dimensions}" if isinstance(task, SentenceEmbedding) else f"none for {task.name}"
        raise ExportError(f"expected a number of dimensions of {most}, found {dimensions}")
    return replace(task, dimensions=dimensions)


def _check_target(target: Path, *, force: bool) -> None:
    """Raises `OutputExistsError` unless `target` is free or a bundle, which alone `force` may replace."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / MANIFEST_NAME).is_file():
        raise OutputExistsError(f"{target}: exists and is not a bundle; choose another place")
    if not force:
        raise OutputExistsError(f"{target}: a bundle is already there; replace it with --force")
    if others := unowned_files(target, _BUNDLE_FILES):
        raise OutputExistsError(
            f"{target}: beside the bundle there is also {', '.join(others)}, which would be lost; move that elsewhere "
            "first"
        )


def _with_latencies(built: Sequence[BuiltVariant], task: Task, max_tokens: int) -> list[BuiltVariant]:
    """The variants with the latencies of those that are made for the device they run on here, the CPU."""
    runs = {each.variant.precision: each.model.session.run for each in built if each.variant.target == "cpu"}
    latencies = median_latencies_ms(runs, task, max_tokens)
    return [
        each.with_measurements(latency_ms=latencies[each.variant.precision]) if each.variant.target == "cpu" else each
        for each in built
    ]


def _axes(shape: ir.Shape | None) -> tuple[str | int, ...]:
    """A graph output's axes as the manifest lists them."""
    return tuple(axis if isinstance(axis, int) else str(axis.value) for axis in shape or ())


def _write(
    folder: Path, source: Checkpoint, task: Task, probe: Probe, built: Sequence[BuiltVariant], decision: Decision
) -> Manifest:
    """Writes the tokenizer and the manifest beside the graphs."""
    tokenizer = folder / "tokenizer.json"
    probe.tokenizer.save(tokenizer)
    axes, config = ("batch", "sequence"), source.config
    (output,) = built[0].graph.graph.outputs
    limits = {"input_ids": config.vocab_size, "attention_mask": 2, "token_type_ids": config.type_vocab_size}
    manifest = Manifest(
        task=task,
        max_tokens=probe.tokenizer.max_tokens,
        pad_token_id=probe.tokenizer.pad_token_id,
        tokenizer=asset(tokenizer),
        inputs=tuple(
            TensorSpec(name=name, dtype="int64", axes=axes, exclusive_max=limits[name]) for name in input_names(config)
        ),
        output=TensorSpec(name=task.output, dtype="float32", axes=_axes(output.shape)),
        variants=tuple(each.variant for each in built),
        default_precision=decision.precision,
        default_reason=decision.reason,
        self_test_inputs=tuple(each.text if each.text_pair is None else each for each in probe.self_test_inputs),
        source={
            "path": source.name,
            **({"revision": source.revision} if source.revision else {}),
            "family": source.family.name,
            "sha256": source.sha256(),
        },
        versions=installed_versions(_TOOLS),
        machine=describe(),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest
