"""Fidelity of MiniLM's embeddings, and the time that an export, an import and the wrapper around a call take.

python -m bert_bench.experiments.minilm_fidelity --checkpoint CKPT --texts FILE --column 0 --output FILE
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import numpy as np
import torch

from bert_bench.experiments.harness import write_result
from bert_export import export
from bert_models import load_model, open_checkpoint
from bert_runtime import load
from bert_runtime.batching import length_sorted_batches
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.tasks import TextInput, stack_single_window
from bert_runtime.tasks.sentence_embedding import cosine
from bert_runtime.tokenization import pad

__all__ = ["main"]

_IMPORTS = 20
_CALLS = 5000


def _pytorch_embeddings(checkpoint: Path, texts: list[str]) -> FloatArray:
    """Embeddings of the PyTorch model, float32 [N, H]."""
    source = open_checkpoint(checkpoint)
    model, tokenizer = load_model(source, source.task()), source.text_tokenizer()
    encodings = [each for (each,) in tokenizer.encode([TextInput(text) for text in texts])]
    rows = np.zeros((len(texts), source.config.hidden_size), dtype=np.float32)
    for indices in length_sorted_batches([len(each) for each in encodings], 1024):
        batch = pad([encodings[i] for i in indices], tokenizer.pad_token_id)
        with torch.inference_mode():
            rows[indices] = model(*map(torch.from_numpy, batch)).numpy()
    return rows


def _wrapper_ms(bundle: Path, text: str) -> dict[str, float]:
    """Median milliseconds of one call around the model: tokenization, and all else with the model's answer at hand."""
    model = load(bundle)
    encodings = model.tokenizer.encode([TextInput(text)])[0]
    answer = model.session.run(pad(encodings, model.tokenizer.pad_token_id))
    model.session.run = lambda batch: answer  # type: ignore[method-assign] # a stub, on purpose
    samples: dict[str, list[float]] = {"call": [], "tokenization": []}
    for _ in range(_CALLS):
        for name, run in (
            ("call", lambda: model(text)),
            ("tokenization", lambda: model.tokenizer.encode([TextInput(text)])),
        ):
            start = time.perf_counter()
            run()
            samples[name].append((time.perf_counter() - start) * 1e3)
    call, tokenization = (median(samples[name]) for name in ("call", "tokenization"))
    return {
        "tokens": len(encodings[0]),
        "tokenization": round(tokenization, 4),
        "wrapper": round(call - tokenization, 4),
    }


def _import_seconds(statement: str) -> list[float]:
    """Seconds that `statement` takes in fresh interpreters."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(_IMPORTS)]
    return sorted(float(run.stdout) for run in runs)


@click.command(help=__doc__)
@click.option("--checkpoint", type=click.Path(path_type=Path), required=True)
@click.option("--texts", type=click.Path(path_type=Path), required=True)
@click.option("--column", default="text", show_default=True, help="Column of the text, or its number.")
@click.option("--count", type=int, default=1000, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(checkpoint: Path, texts: Path, column: str, count: int, output: Path) -> None:
    """Measures all of it, writes the result."""
    sentences = list(dict.fromkeys(record.text() for record in read_records(texts, {"text": column})))[:count]
    if len(sentences) < count:
        raise click.ClickException(f"{texts}: expected {count} different texts, found {len(sentences)}")
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        start = time.perf_counter()
        export(checkpoint, bundle, progress=click.echo)
        export_seconds = time.perf_counter() - start
        reference = _pytorch_embeddings(checkpoint, sentences)
        fidelity = {}
        for precision in ("fp32", "int8"):
            similarity = cosine(stack_single_window(load(bundle, precision=precision).outputs(sentences)), reference)
            fidelity[precision] = {
                "cosine_with_pytorch": {"mean": float(similarity.mean()), "min": float(similarity.min())}
            }
        wrapper_ms = _wrapper_ms(bundle, "why was I charged twice for the same transfer yesterday?")
    imports = {each: _import_seconds(each) for each in ("import bert_runtime", "import bert_runtime, onnxruntime")}
    result = {
        "sentences": len(sentences),
        "fidelity": fidelity,
        "export_seconds": round(export_seconds, 1),
        "wrapper_ms": wrapper_ms,
        "import_seconds": {
            each: {"median": round(median(seconds), 4), "max": round(max(seconds), 4), "processes": len(seconds)}
            for each, seconds in imports.items()
        },
    }
    write_result(output, result)
    click.echo(result)


if __name__ == "__main__":
    main()
