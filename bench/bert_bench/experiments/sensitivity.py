"""What INT8 costs where: the task metric with some of the encoder's projections left in FP32.

python -m bert_bench.experiments.sensitivity --checkpoint CKPT --evaluate FILE --output FILE
"""

import tempfile
from pathlib import Path
from typing import Any

import click
import onnx_ir as ir

from bert_bench.experiments.common import write_result
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.quantization import expected_projections, quantize
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime.evaluation import evaluate
from bert_runtime.machine import available_cores
from bert_runtime.model import Model
from bert_runtime.records import Record, read_records
from bert_runtime.session import Session
from bert_runtime.tokenization import TextTokenizer

__all__ = ["main"]

GROUPS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "feed_forward.down": ("feed_forward.down",),
    "feed_forward": ("feed_forward.down", "feed_forward.up"),
}
"""What stays in FP32: names of modules in every layer."""


def _metrics(graph: ir.Model, model: TaskModel, tokenizer: TextTokenizer, records: list[Record]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(graph, path)
        session = Session(path, model.task.output, available_cores())
        return evaluate(Model(model.runtime_task(), tokenizer, session), records)


@click.command(help=__doc__)
@click.option("--checkpoint", required=True)
@click.option("--evaluate", "file", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(checkpoint: str, file: Path, output: Path) -> None:
    """Measures FP32, INT8, and INT8 with each group left out; writes the result."""
    source = open_checkpoint(checkpoint)
    task = source.task()
    model, tokenizer, records = load_model(source, task), source.text_tokenizer(None, task.windows), read_records(file)
    graph = capture(model)
    expected = expected_projections(source.config, fuse(graph, source.config, task))
    fp32 = _metrics(graph, model, tokenizer, records)
    result: dict[str, Any] = {"metric": task.metric, "examples": len(records), "fp32": fp32, "int8_but_for": {}}
    for name, modules in GROUPS.items():
        quantized = graph.clone()
        quantize(quantized, expected - source.config.num_layers * len(modules), modules)
        metrics = _metrics(quantized, model, tokenizer, records)
        change = metrics[task.metric] / fp32[task.metric] - 1
        result["int8_but_for"][name] = {**metrics, "relative_change": change}
        click.echo(f"INT8 but for {name}: {task.metric} {metrics[task.metric]:.4f} ({change:+.2%})")
    write_result(output, result)


if __name__ == "__main__":
    main()
