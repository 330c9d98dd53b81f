"""What INT8 costs under which recipe: drift from FP32 and the task metric on a labelled file.

python -m bert_bench.experiments.quantization --checkpoint CKPT --calibrate FILE --evaluate FILE --output FILE [--nncf]

With `--nncf`, OpenVINO's own INT8 of the same weights, calibrated on the same inputs, stands beside ours; it needs the
packages openvino and nncf.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import onnx_ir as ir

from bert_bench.experiments.harness import write_result
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.quantization import expected_projections, measure_activations, quantize, quantize_dynamic
from bert_export.samples import CalibrationTexts, built_in_calibration, file_calibration
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime.cpu.session import Session
from bert_runtime.evaluation import build_examples
from bert_runtime.machine import available_cores, installed_versions
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.tasks import Example, Outputs
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["main"]

HEADROOMS = (1.0, 1.05, 1.15, 1.3)

KEPT_FP32: dict[str, tuple[str, ...]] = {
    "feed_forward.down": ("feed_forward.down",),
    "feed_forward": ("feed_forward.down", "feed_forward.up"),
}
"""What may stay in FP32: names of modules in every layer."""


class _Runs(Protocol):
    """What `Model` needs of a session."""

    threads: int

    def run(self, batch: Batch) -> FloatArray: ...


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A model, and what every recipe for it is judged on."""

    model: TaskModel
    tokenizer: TextTokenizer
    examples: Sequence[Example]
    fused: ir.Model
    expected: int
    folder: Path

    def session(self, graph: ir.Model, *, int8: bool = False) -> Session:
        """The graph as the runtime opens it."""
        path = self.folder / "model.onnx"
        ir.save(graph, path)
        return Session(path, self.model.task.output, available_cores(), int8=int8)

    def outputs(self, session: _Runs, *, alone: bool = False) -> list[Outputs]:
        """Raw outputs for the examples, in the batches that `evaluate` makes or one by one."""
        runner = Model(self.model.runtime_task(), self.tokenizer, session)  # type: ignore[arg-type] # has what is used
        inputs = [each for example in self.examples for each in example.inputs]
        return [runner.outputs([each])[0] for each in inputs] if alone else runner.outputs(inputs)

    def judged(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, Any]:
        """Drift and metrics of `outputs`, whose FP32 counterparts are `reference`."""
        task = self.model.runtime_task()
        drift = np.concatenate([np.abs(a.flat - b.flat) for a, b in zip(outputs, reference, strict=True)])
        found, before = (task.score(each, self.examples) for each in (outputs, reference))
        return {
            **task.agreement(outputs, reference),
            "mean_abs_drift": float(drift.mean()),
            "max_abs_drift": float(drift.max()),
            "metrics": found,
            "relative_change": found[task.metric] / before[task.metric] - 1,
        }


def _recipes(subject: _Subject, file: CalibrationTexts, built_in: CalibrationTexts) -> Iterator[tuple[str, ir.Model]]:
    """Graphs in INT8, by the name of their recipe."""
    dynamic = subject.fused.clone()
    quantize_dynamic(dynamic, subject.expected)
    yield "dynamic", dynamic
    for name, texts in (("file", file), ("built-in texts", built_in)):
        for headroom in HEADROOMS:
            yield f"{name}, headroom {headroom}", _static(subject, replace(texts, headroom=headroom))
    for name, modules in KEPT_FP32.items():
        yield f"file, {name} in FP32", _static(subject, file, modules)


def _static(subject: _Subject, texts: CalibrationTexts, keep_fp32: tuple[str, ...] = ()) -> ir.Model:
    graph = subject.fused.clone()
    kept = subject.model.config.num_layers * len(keep_fp32)
    activations = measure_activations(graph, texts.batches(subject.tokenizer), texts.headroom)
    quantize(graph, subject.expected - kept, activations, keep_fp32)
    return graph


class _OpenVino:
    """OpenVINO's INT8 with NNCF's preset for transformers; everything else in FP32, as in ours."""

    def __init__(self, path: Path, batches: Sequence[Batch], threads: int) -> None:
        import nncf
        import openvino

        self.threads = threads
        model = openvino.Core().read_model(path)
        self._names = [each.get_any_name() for each in model.inputs]
        data = nncf.Dataset([self._feed(batch) for batch in batches])
        quantized = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches))
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        self._compiled = openvino.Core().compile_model(quantized, "CPU", settings)

    def _feed(self, batch: Batch) -> dict[str, Any]:
        return {name: array for name, array in batch._asdict().items() if name in self._names}

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs of a batch."""
        output: FloatArray = np.array(self._compiled(self._feed(batch))[0])
        return output


def _nncf(subject: _Subject, file: CalibrationTexts) -> _OpenVino:
    """OpenVINO's INT8 of the plain capture, calibrated on the same inputs, one at a time."""
    path = subject.folder / "plain.onnx"
    ir.save(capture(subject.model), path)
    rows = [
        Batch(*(array[i : i + 1, : batch.attention_mask[i].sum()] for array in batch))
        for batch in file.batches(subject.tokenizer)
        for i in range(len(batch.input_ids))
    ]
    return _OpenVino(path, rows, available_cores())


@click.command(help=__doc__)
@click.option("--checkpoint", required=True)
@click.option("--calibrate", type=click.Path(path_type=Path), required=True)
@click.option("--evaluate", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--nncf", is_flag=True, help="Also OpenVINO's INT8.")
def main(checkpoint: str, calibrate: Path, evaluate: Path, output: Path, nncf: bool) -> None:
    """Measures every recipe; writes the result."""
    source = open_checkpoint(checkpoint)
    task = source.task()
    model, tokenizer = load_model(source, task), source.text_tokenizer(None, task.windows)
    examples = build_examples(task, tokenizer, read_records(evaluate))
    graph = capture(model)
    expected = expected_projections(source.config, fuse(graph, source.config, task))
    file, built_in = file_calibration(calibrate, None, task, tokenizer), built_in_calibration(task, tokenizer)
    recipes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        subject = _Subject(
            model=model, tokenizer=tokenizer, examples=examples, fused=graph, expected=expected, folder=Path(folder)
        )
        exact = subject.outputs(subject.session(graph))

        def record(name: str, outputs: Sequence[Outputs]) -> None:
            recipes[name] = subject.judged(outputs, exact)
            shown = {key: round(value, 4) for key, value in recipes[name].items() if isinstance(value, float)}
            click.echo(f"{name}: {shown}")

        for name, quantized in _recipes(subject, file, built_in):
            session = subject.session(quantized, int8=True)
            record(name, subject.outputs(session))
            if name in ("dynamic", f"file, headroom {file.headroom}"):  # what the exporter did, and does
                record(f"{name}, one by one", subject.outputs(session, alone=True))
        if nncf:
            record("OpenVINO", subject.outputs(_nncf(subject, file)))
    write_result(
        output,
        {
            "metric": task.metric,
            "examples": len(examples),
            "calibration": {"file": calibrate.name, "inputs": len(file.inputs), "headroom": file.headroom},
            "fp32": task.score(exact, examples),
            "int8": recipes,
            "peer_versions": installed_versions(("openvino", "nncf")) if nncf else {},
        },
    )


if __name__ == "__main__":
    main()
