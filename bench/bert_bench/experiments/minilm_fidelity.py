"""Measure the fidelity of MiniLM's embeddings, and the fixed costs: export, import, and the wrapper around inference.

python -m bert_bench.experiments.minilm_fidelity --checkpoint CKPT --texts FILE COLUMN --output FILE

Fidelity is the cosine similarity of the bundle's embeddings, FP32 and INT8, with PyTorch's in FP32: mean, 1st
percentile and minimum over 1,000 different texts of each file, over words that are repeated 500 times, and over short
sentences of function words. INT8 is calibrated on the built-in texts, so that the files are held out. Export time is
one wall-clock time. Import times are medians over 20 fresh interpreters. Wrapper and tokenization times are medians
over 5,000 interleaved calls, whose inference is replaced by its stored output.

Made bench/results/minilm-fidelity.json.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch

from bert_bench.experiments.harness import distinct_texts, path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models import load_model, open_checkpoint
from bert_runtime import load
from bert_runtime.batching import length_sorted_batches
from bert_runtime.numerics import FloatArray
from bert_runtime.similarity import cosine
from bert_runtime.tasks import TextInput, stack_single_window
from bert_runtime.tokenization import pad

__all__ = ["main", "results_table"]

_INTERPRETERS = 20
_CALLS = 5000
_BATCH_TOKENS = 1024
_WRAPPER_TEXT = "why was I charged twice for the same transfer yesterday?"
_REPEATED_WORDS = (
    "x", "very", "card", "bank", "hello", "the", "a", "of", "and", "no", "yes", "good", "is", "I", "money", "2020",
    "lol", "ha", "running", "university", "?", "#", "*", "%", "9", "é", "中",
)  # fmt: skip
"""Words that INT8 is not calibrated on. Full stops are left out: there the FP32 model itself is unstable."""
_FUNCTION_WORDS = (
    "the of and to", "is it", "it was", "the", "of", "to be or not to be", "a", "that is", "and the", "in it", "was",
    "it is what it is", "on to the", "for the", "by the", "I am", "you are", "is", "at the of", "he was",
    "they had been", "as if", "so it is", "and then there was",
)  # fmt: skip
_IMPORTS = ("import bert_runtime", "import bert_runtime, onnxruntime")


def _pytorch_embeddings(checkpoint: Path, texts: list[str]) -> FloatArray:
    """Return the embeddings of the PyTorch model, float32 [N, H]."""
    source = open_checkpoint(checkpoint)
    model, tokenizer = load_model(source, source.task()), source.text_tokenizer()
    encodings = [encoding for (encoding,) in tokenizer.encode([TextInput(text) for text in texts])]
    embeddings = np.zeros((len(texts), source.config.hidden_size), dtype=np.float32)
    for indices in length_sorted_batches([len(encoding) for encoding in encodings], _BATCH_TOKENS):
        batch = pad([encodings[i] for i in indices], tokenizer.pad_token_id)
        with torch.inference_mode():
            embeddings[indices] = model(*map(torch.from_numpy, batch)).numpy()
    return embeddings


def _fidelity(bundle: Path, texts: list[str], reference: FloatArray) -> dict[str, Any]:
    """Return mean, 1st percentile and minimum of the cosine similarity with `reference`, float32 [N, H]."""
    fidelity: dict[str, Any] = {"texts": len(texts)}
    for precision in ("fp32", "int8"):
        embeddings = stack_single_window(load(bundle, precision=precision).outputs(texts))
        similarity = cosine(embeddings, reference).astype(np.float64)
        fidelity[precision] = {
            "mean": round(float(similarity.mean()), 8),
            "p1": round(float(np.percentile(similarity, 1)), 8),
            "min": round(float(similarity.min()), 8),
        }
    return fidelity


def results_table(result: Path) -> str:
    """Return the fidelity of INT8 in a result file as a Markdown table, one row per set of texts."""
    rows = [
        [name, f"{found['texts']:,}", *(f"{found['int8'][key]:.4f}" for key in ("mean", "p1", "min"))]
        for name, found in json.loads(result.read_text("utf-8"))["cosine_with_pytorch"].items()
    ]
    return markdown_table(["texts", "number", "mean", "1st percentile", "minimum"], rows)


def _wrapper_ms(bundle: Path, text: str) -> dict[str, float]:
    """Return the median milliseconds that a call spends outside inference: in tokenization, and in everything else."""
    model = load(bundle)
    encodings = model.tokenizer.encode([TextInput(text)])[0]
    stored = model.session.run(pad(encodings, model.tokenizer.pad_token_id))
    model.session.run = lambda batch: stored  # type: ignore[method-assign] # a stub, on purpose
    samples: dict[str, list[float]] = {"call": [], "tokenization": []}
    for _ in range(_CALLS):
        for name, function in (
            ("call", lambda: model(text)),
            ("tokenization", lambda: model.tokenize([text])),
        ):
            start = time.perf_counter()
            function()
            samples[name].append((time.perf_counter() - start) * 1e3)
    call, tokenization = (median(samples[name]) for name in ("call", "tokenization"))
    return {
        "tokens": len(encodings[0]),
        "tokenization": round(tokenization, 4),
        "wrapper": round(call - tokenization, 4),
    }


def _import_seconds(statement: str) -> dict[str, float]:
    """Return the median and the maximum seconds that an import takes in fresh interpreters."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(_INTERPRETERS)]
    seconds = [float(run.stdout) for run in runs]
    return {"median": round(median(seconds), 4), "max": round(max(seconds), 4), "processes": len(seconds)}


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder of a sentence-embedding model.")
@click.option(
    "--texts",
    type=(click.Path(path_type=Path), str),
    multiple=True,
    required=True,
    help="File of texts, and the column of the text: its name, or its number from 0. May be repeated.",
)
@click.option("--count", type=int, default=1000, show_default=True, help="Different texts of each file to embed.")
@path_option("--output", "Result file to write.")
def main(checkpoint: Path, texts: tuple[tuple[Path, str], ...], count: int, output: Path) -> None:
    """Export the checkpoint, measure, write the result."""
    sets = {
        f"{path.parent.name}/{path.name}": distinct_texts(path, column, count, at_least=count) for path, column in texts
    }
    sets["one word, 500 times"] = [" ".join([word] * 500) for word in _REPEATED_WORDS]
    sets["function words"] = list(_FUNCTION_WORDS)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        start = time.perf_counter()
        export(checkpoint, bundle, progress=click.echo)
        export_seconds = time.perf_counter() - start
        fidelity = {
            name: _fidelity(bundle, items, _pytorch_embeddings(checkpoint, items)) for name, items in sets.items()
        }
        wrapper_ms = _wrapper_ms(bundle, _WRAPPER_TEXT)
    result = {
        "cosine_with_pytorch": fidelity,
        "export_seconds": round(export_seconds, 1),
        "wrapper_ms": wrapper_ms,
        "import_seconds": {statement: _import_seconds(statement) for statement in _IMPORTS},
    }
    write_result(output, result)
    click.echo(result)


if __name__ == "__main__":
    main()
