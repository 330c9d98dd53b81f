"""Measure what INT8 costs in quality under different recipes: drift from FP32 and the task metric on a labelled file.

python -m bert_bench.experiments.quantization --checkpoint CKPT --calibrate FILE --evaluate FILE --output FILE [--nncf]

Recipes: dynamic quantization; static quantization calibrated on the file or on the built-in texts, with several
headrooms on the activation ranges; and static quantization that keeps feed-forward matmuls in FP32. All run in ONNX
Runtime without native kernels, in the batches of `evaluate`; two recipes run one input at a time as well. With
`--nncf`, OpenVINO's INT8 of the same weights, calibrated on the same inputs, is measured too. It needs the packages
openvino and nncf.

Made bench/results/quantization.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx_ir as ir

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.calibration_texts import CalibrationTexts, built_in_calibration, file_calibration
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.quantization import expected_projections, measure_activations, quantize, quantize_dynamic
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime.cpu.session import Session
from bert_runtime.evaluation import build_examples
from bert_runtime.machine import available_cores, installed_versions
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.runner import Runner
from bert_runtime.tasks import Example, Outputs
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["main", "results_table"]

_HEADROOMS = (1.0, 1.05, 1.15, 1.3)
"""Factors on the activation ranges that calibration finds."""

_KEPT_FP32: dict[str, tuple[str, ...]] = {
    "feed_forward.down": ("feed_forward.down",),
    "feed_forward": ("feed_forward.down", "feed_forward.up"),
}
"""Sets of modules to keep in FP32 in every layer, by the name of the set."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A model to quantize, and the examples to evaluate every recipe on."""

    model: TaskModel
    tokenizer: TextTokenizer
    examples: Sequence[Example]
    fused_graph: ir.Model
    num_projections: int
    """Matmuls that quantization must find in the fused graph."""
    folder: Path

    def session(self, graph: ir.Model, *, int8: bool = False) -> Session:
        """Open a graph in ONNX Runtime as the runtime does."""
        path = self.folder / "model.onnx"
        ir.save(graph, path)
        return Session(path, self.model.task.output, available_cores(), int8=int8)

    def outputs(self, runner: Runner, *, one_by_one: bool = False) -> list[Outputs]:
        """Return raw outputs for the examples' inputs, in the batches of `evaluate` or one input at a time."""
        model = Model(self.model.runtime_task(), self.tokenizer, runner)
        inputs = [text_input for example in self.examples for text_input in example.inputs]
        if one_by_one:
            return [model.outputs([text_input])[0] for text_input in inputs]
        return model.outputs(inputs)

    def evaluate(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, Any]:
        """Return drift and metrics of `outputs`; `reference` are the same examples' outputs in FP32."""
        task = self.model.runtime_task()
        drift = np.concatenate([np.abs(a.flat - b.flat) for a, b in zip(outputs, reference, strict=True)])
        metrics, fp32_metrics = (task.score(scored, self.examples) for scored in (outputs, reference))
        return {
            **task.agreement(outputs, reference),
            "mean_abs_drift": float(drift.mean()),
            "max_abs_drift": float(drift.max()),
            "metrics": metrics,
            "relative_change": metrics[task.metric] / fp32_metrics[task.metric] - 1,
        }


def _recipes(subject: _Subject, file: CalibrationTexts, built_in: CalibrationTexts) -> Iterator[tuple[str, ir.Model]]:
    """Yield the name of each recipe and its INT8 graph."""
    dynamic = subject.fused_graph.clone()
    quantize_dynamic(dynamic, subject.num_projections)
    yield "dynamic", dynamic
    for name, texts in (("file", file), ("built-in texts", built_in)):
        for headroom in _HEADROOMS:
            yield f"{name}, headroom {headroom}", _quantize_static(subject, replace(texts, headroom=headroom))
    for name, modules in _KEPT_FP32.items():
        yield f"file, {name} in FP32", _quantize_static(subject, file, modules)


def _quantize_static(subject: _Subject, texts: CalibrationTexts, keep_fp32: tuple[str, ...] = ()) -> ir.Model:
    graph = subject.fused_graph.clone()
    num_kept = subject.model.config.num_layers * len(keep_fp32)
    activations = measure_activations(graph, texts.batches(subject.model.task, subject.tokenizer), texts.headroom)
    quantize(graph, subject.num_projections - num_kept, activations, keep_fp32)
    return graph


class _OpenVino:
    """Runner of OpenVINO's INT8 with NNCF's preset for transformers; everything else in FP32, as in our INT8 graphs."""

    device_name = "OpenVINO"

    def __init__(self, path: Path, batches: Sequence[Batch], threads: int) -> None:
        import nncf
        import openvino

        self.threads = threads
        model = openvino.Core().read_model(path)
        self._names = [node.get_any_name() for node in model.inputs]
        data = nncf.Dataset([self._feed(batch) for batch in batches])
        quantized = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches))
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        self._compiled = openvino.Core().compile_model(quantized, "CPU", settings)

    def _feed(self, batch: Batch) -> dict[str, Any]:
        return {name: array for name, array in batch._asdict().items() if name in self._names}

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch."""
        output: FloatArray = np.array(self._compiled(self._feed(batch))[0])
        return output


def _quantize_with_nncf(subject: _Subject, file: CalibrationTexts) -> _OpenVino:
    """Quantize the graph without fusions in OpenVINO, calibrated on the same inputs, one at a time."""
    path = subject.folder / "plain.onnx"
    ir.save(capture(subject.model), path)
    single_inputs = [
        Batch(*(array[i : i + 1, : batch.attention_mask[i].sum()] for array in batch))
        for batch in file.batches(subject.model.task, subject.tokenizer)
        for i in range(len(batch.input_ids))
    ]
    return _OpenVino(path, single_inputs, available_cores())


def _evaluate_recipes(
    subject: _Subject, reference: Sequence[Outputs], file: CalibrationTexts, built_in: CalibrationTexts, *, nncf: bool
) -> dict[str, Any]:
    """Evaluate every recipe; return the results by name and print them."""
    results: dict[str, Any] = {}

    def record(name: str, outputs: Sequence[Outputs]) -> None:
        results[name] = subject.evaluate(outputs, reference)
        shown = {key: round(value, 4) for key, value in results[name].items() if isinstance(value, float)}
        click.echo(f"{name}: {shown}")

    for name, graph in _recipes(subject, file, built_in):
        session = subject.session(graph, int8=True)
        record(name, subject.outputs(session))
        if name in ("dynamic", f"file, headroom {file.headroom}"):  # the exporter's recipes, without and with a file
            record(f"{name}, one by one", subject.outputs(session, one_by_one=True))
    if nncf:
        record("OpenVINO", subject.outputs(_quantize_with_nncf(subject, file)))
    return results


def results_table(result: Path) -> str:
    """Return the drift and the metric of each recipe in a result file as a Markdown table."""
    values = json.loads(result.read_text("utf-8"))
    metric = values["metric"]
    header = ["recipe", "labels as FP32", "mean logit difference", "largest", metric.replace("_", " ")]
    rows = [["FP32", "–", "–", "–", f"{values['fp32'][metric]:.4f}"]]
    for recipe, found in values["int8"].items():
        drift = [f"{found['mean_abs_logit_drift']:.3f}", f"{found['max_abs_logit_drift']:.2f}"]
        rows.append([recipe, f"{found['label_agreement']:.2%}", *drift, f"{found['metrics'][metric]:.4f}"])
    return markdown_table(header, rows)


@click.command(help=__doc__)
@click.option("--checkpoint", required=True, help="Checkpoint folder or hub id.")
@path_option("--calibrate", "Labelled file to calibrate on.")
@path_option("--evaluate", "Labelled file to evaluate on.")
@path_option("--output", "Result file to write.")
@click.option("--nncf", is_flag=True, help="Measure OpenVINO's INT8, too.")
def main(checkpoint: str, calibrate: Path, evaluate: Path, output: Path, nncf: bool) -> None:
    """Measure every recipe and write the result."""
    source = open_checkpoint(checkpoint)
    task = source.task()
    model, tokenizer = load_model(source, task), source.text_tokenizer(None, task.windows)
    examples = build_examples(task, tokenizer, read_records(evaluate))
    graph = capture(model)
    num_projections = expected_projections(source.config, fuse(graph, source.config, task))
    file, built_in = file_calibration(calibrate, None, task, tokenizer), built_in_calibration(task, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        subject = _Subject(
            model=model, tokenizer=tokenizer, examples=examples, fused_graph=graph, num_projections=num_projections,
            folder=Path(folder),
        )  # fmt: skip
        reference = subject.outputs(subject.session(graph))
        recipes = _evaluate_recipes(subject, reference, file, built_in, nncf=nncf)
    write_result(
        output,
        {
            "metric": task.metric,
            "examples": len(examples),
            "calibration": {"file": calibrate.name, "inputs": len(file.inputs), "headroom": file.headroom},
            "fp32": task.score(reference, examples),
            "int8": recipes,
            "peer_versions": installed_versions(("openvino", "nncf")) if nncf else {},
        },
    )
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
