"""Compare sparse embeddings with sentence-transformers' `SparseEncoder`: weights, time per text and peak memory.

python -m bert_bench.experiments.sparse_embedding CHECKPOINT BUNDLE --squad FILE --peer-python PYTHON --output FILE

The bundle is an export of the checkpoint with --task sparse-embedding. Every engine runs in its own process with the
same number of threads. Rounds are interleaved: in each, every engine encodes one question and 64 paragraphs of SQuAD,
from text to weights. Memory is the peak resident set of the process over all rounds; its first value is that before the
first paragraph. `bert-export fp32, no kernels` runs the function's body, which computes the vocabulary in chunks.

Made bench/results/sparse-embedding.json.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import rotated

__all__ = ["main", "results_table"]

_LOOP = """
import json, resource, sys, time
import numpy as np
texts = json.load(open(sys.argv[2]))
for line in sys.stdin:
    name, out = line.split()
    start = time.perf_counter()
    weights = encode(texts[name])
    seconds = time.perf_counter() - start
    if out != "-":
        np.save(out, dense(weights))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([1e3 * seconds, peak]), flush=True)
"""
"""Answers each line on stdin, a workload and a file for its weights or `-`, with milliseconds and peak memory."""

_OURS = """
import sys
from bert_runtime import load
import bert_runtime.cpu.native_kernels as kernels
if sys.argv[3] == "plain":
    kernels.kernel_library = lambda: None
model = load(sys.argv[1], precision=sys.argv[4], threads=int(sys.argv[5]))
encode = model
def dense(results):
    rows = np.zeros((len(results), model.task.vocab_size), np.float32)
    for row, result in zip(rows, results):
        row[result.indices] = result.weights
    return rows
"""
"""Arguments: bundle, texts, `kernels` or `plain`, precision, threads."""

_PEER = """
import sys, torch
torch.set_num_threads(int(sys.argv[5]))
from sentence_transformers import SparseEncoder
options = {}
if sys.argv[4] == "onnx":
    import onnxruntime
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = int(sys.argv[5])
    options = {"model_kwargs": {"session_options": session_options}}
model = SparseEncoder(sys.argv[1], backend=sys.argv[4], **options)
encode = model.encode
dense = lambda weights: weights.to_dense().numpy()
"""
"""Arguments: checkpoint, texts, unused, backend, threads."""


class _Engine:
    """A running engine."""

    def __init__(self, name: str, python: str, program: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.milliseconds: dict[str, list[float]] = {}
        self.peak_bytes: dict[str, int] = {}
        self.process = subprocess.Popen(
            [python, "-c", program + _LOOP, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, workload: str, out: str = "-") -> None:
        """Encode a workload and record its time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{workload} {out}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError(self.process.stderr.read().strip().splitlines()[-1])
        milliseconds, peak = json.loads(line)
        self.milliseconds.setdefault(workload, []).append(milliseconds)
        self.peak_bytes[workload] = peak

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _texts(squad: Path, count: int) -> dict[str, Any]:
    """Return one question, and the first paragraphs of as many articles as there are."""
    paragraphs = [
        paragraph
        for article in json.loads(gzip.decompress(squad.read_bytes()))["data"]
        for paragraph in article["paragraphs"]
    ]
    chosen = paragraphs[:: len(paragraphs) // count][:count]
    return {"question": [chosen[0]["qas"][0]["question"]], "paragraphs": [item["context"] for item in chosen]}


def _engines(checkpoint: Path, bundle: Path, texts: Path, peer: Path, threads: int) -> list[_Engine]:
    ours = [("fp32", "kernels", ""), ("int8", "kernels", ""), ("fp32", "plain", ", no kernels")]
    engines = [
        _Engine(f"bert-export {precision}{suffix}", sys.executable, _OURS,
                [str(bundle), str(texts), kernels, precision, str(threads)])
        for precision, kernels, suffix in ours
    ]  # fmt: skip
    return engines + [
        _Engine(f"SparseEncoder {backend}", str(peer), _PEER, [str(checkpoint), str(texts), "-", backend, str(threads)])
        for backend in ("torch", "onnx")
    ]


def _compare(engines: Sequence[_Engine], folder: Path) -> dict[str, dict[str, float]]:
    """Run every engine once on each workload; return how its weights differ from those of `SparseEncoder torch`."""
    weights = {}
    for engine in engines:
        for workload in ("question", "paragraphs"):
            engine.run(workload, str(folder / f"{workload}.npy"))
            weights[engine.name, workload] = np.load(folder / f"{workload}.npy")
    differences: dict[str, dict[str, float]] = {}
    for engine in engines:
        found, expected = weights[engine.name, "paragraphs"], weights["SparseEncoder torch", "paragraphs"]
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        differences[engine.name] = {
            "max_abs_difference": float(np.abs(found - expected).max()),
            "mean_cosine": float(((found * expected).sum(axis=1) / norms).mean()),
        }
    return differences


def results_table(result: Path) -> str:
    """Return a result file as a Markdown table, one row per engine."""
    found = json.loads(result.read_text(encoding="utf-8"))
    rows = [
        [
            name, f"{row['max_abs_difference']:.1e}", f"{row['mean_cosine']:.4f}", f"{row['question_p50_ms']:.2f}",
            f"{row['paragraphs_p50_ms']:.0f}", f"{row['peak_rss_mib']}",
        ]
        for name, row in found["engines"].items()
    ]  # fmt: skip
    header = ["", "largest difference", "mean cosine", "a question, ms", "64 paragraphs, ms", "peak memory, MiB"]
    return markdown_table(header, rows)


@click.command(help=__doc__)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("bundle", type=click.Path(path_type=Path))
@path_option("--squad", "SQuAD file.")
@path_option("--peer-python", "Python with sentence-transformers.")
@path_option("--output", "Result to write.")
@click.option("--rounds", type=int, default=7, show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
def main(
    checkpoint: Path, bundle: Path, squad: Path, peer_python: Path, output: Path, rounds: int, threads: int
) -> None:
    """Measure."""
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        texts = Path(name) / "texts.json"
        texts.write_text(json.dumps(_texts(squad, 64)), encoding="utf-8")
        running = []
        for engine in _engines(checkpoint, bundle, texts, peer_python, threads):
            try:
                engine.run("question")
                running.append(engine)
            except RuntimeError as error:
                failed[engine.name] = str(error)[:300]
        differences = _compare(running, Path(name))
        for turn in range(rounds):
            for engine_name in rotated([engine.name for engine in running], turn):
                engine = next(item for item in running if item.name == engine_name)
                for workload, calls in (("question", 10), ("paragraphs", 1)):
                    for _ in range(calls):
                        engine.run(workload)
        for engine in running:
            engine.close()
    results = {
        engine.name: {
            **differences[engine.name],
            "question_p50_ms": round(median(engine.milliseconds["question"][2:]), 3),
            "paragraphs_p50_ms": round(median(engine.milliseconds["paragraphs"][1:]), 1),
            "peak_rss_mib": round(engine.peak_bytes["paragraphs"] / 2**20),
        }
        for engine in running
    }
    write_result(output, {"engines": results, "failed": failed, "paragraphs": 64, "rounds": rounds}, threads)
    for engine_name, values in results.items():
        click.echo(f"{engine_name:28} {values}")
    click.echo(failed)


if __name__ == "__main__":
    main()
