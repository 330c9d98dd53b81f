"""Time reranking of 30 documents of 256 tokens, from text, next to other libraries.

python -m bert_bench.experiments.rerank_speed --checkpoint CKPT --calibrate FILE --squad FILE --output FILE

The query is a question of SQuAD and the documents are three paragraphs of it each, cut to 256 tokens with the query and
the special tokens. Every engine runs in a process of its own, in rounds; each round begins with another one, and in
a round an engine makes one untimed call and then `--calls` timed ones. Engines:

    bert-export-int8                     Model.rank, from text
    bert-export-int8-token-ids           Model.run, on the token ids of the same pairs
    sentence-transformers                CrossEncoder.rank in PyTorch, FP32
    sentence-transformers-onnx-int8      its ONNX backend, quantized for avx512_vnni
    sentence-transformers-openvino-int8  its OpenVINO backend, quantized on rows of the calibration file
    fastembed-onnx-int8                  TextCrossEncoder on the same ONNX file

Other libraries run with the fastest of the batch sizes 2, 8 and 32. What the engines load is kept in `--folder`, and
used again.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import paired_speedup, rotated, summarize
from bert_bench.workers.environments import Environment, bench_cache_dir
from bert_bench.workers.rerank_worker import ENGINES
from bert_export import export
from bert_models import open_checkpoint
from bert_runtime.machine import available_cores
from bert_runtime.metrics import pearson
from bert_runtime.records import read_records
from bert_runtime.tasks import TextInput

__all__ = ["main", "make_inputs", "results_table"]

_DOCUMENTS, _TOKENS = 30, 256
_REST_S = 0.5
"""Seconds until the threads of the engine before have stopped spinning."""

_MIN_PEARSON = 0.9
"""Correlation of an engine's scores with PyTorch's. An engine that read 128 tokens of 256 had 0.86."""

_OURS, _TOKEN_IDS = "bert-export-int8", "bert-export-int8-token-ids"

_PREPARE = """
import sys
import torch
from sentence_transformers import CrossEncoder, export_dynamic_quantized_onnx_model
from sentence_transformers import export_static_quantized_openvino_model
checkpoint, folder, rows = sys.argv[1:]
model = CrossEncoder(checkpoint, backend="onnx", device="cpu")
model.save_pretrained(folder)
export_dynamic_quantized_onnx_model(model, "avx512_vnni", folder)
model = CrossEncoder(checkpoint, backend="openvino", device="cpu")
model.save_pretrained(folder)
export_static_quantized_openvino_model(model, None, folder, rows, "default", "train", "text")
"""
"""Writes both quantized files of sentence-transformers, as its documentation says."""


def make_inputs(checkpoint: Path, squad: Path) -> dict[str, Any]:
    """Return a query and documents of SQuAD that have the wanted number of tokens together with it."""
    records = read_records(squad)
    tokenizer = open_checkpoint(checkpoint).text_tokenizer(_TOKENS)
    query = records[0].text("question")
    paragraphs = list(dict.fromkeys(record.text("context") for record in records))
    documents: list[str] = []
    for start in range(0, len(paragraphs), 3):
        text = " ".join(paragraphs[start : start + 3])
        ((window,),) = tokenizer.encode([TextInput(query, text)])
        if len(window) == _TOKENS and len(documents) < _DOCUMENTS:
            documents.append(text[: window.offsets[-2][1]])
    if len(documents) < _DOCUMENTS:
        raise click.ClickException(f"{squad}: expected {_DOCUMENTS} times three paragraphs of {_TOKENS} tokens or more")
    return {"query": query, "documents": documents}


class _Worker:
    """An engine in a process of its own."""

    def __init__(self, engine: str, folder: Path, inputs: Path, threads: int) -> None:
        script = Path(__file__).parents[1] / "workers" / "rerank_worker.py"
        command, variables = _interpreter(engine)
        self.engine = engine
        self.process = subprocess.Popen(
            [command, str(script), engine, str(folder), str(threads), str(inputs)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables,
        )  # fmt: skip
        self.described = self._read()
        self.rounds: list[list[float]] = []

    def time(self, calls: int) -> None:
        """Time calls after an untimed one, as a round."""
        assert self.process.stdin is not None
        time.sleep(_REST_S)
        self.process.stdin.write(f"{calls + 1}\n")
        self.process.stdin.flush()
        self.rounds.append(self._read()[1:])

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise click.ClickException(f"{self.engine} ended with status {self.process.wait()}")


def _interpreter(engine: str) -> tuple[str, dict[str, str]]:
    """Return the Python of an engine's environment, and its variables."""
    import os
    import sys

    name = engine.partition("-")[0]
    if name == "bert":
        return sys.executable, dict(os.environ)
    environment = Environment("fastembed" if name == "fastembed" else "sentence-transformers", bench_cache_dir())
    environment.ensure(click.echo)
    return str(environment.python), {**os.environ, **environment.variables()}


def _prepare(checkpoint: Path, calibrate: Path, scratch: Path) -> dict[str, Path]:
    """Export the bundle and the peers' files; return the folder of each engine."""
    bundle, folder = scratch / "bundle", scratch / "sentence-transformers"
    if not bundle.exists():
        export(checkpoint, bundle, task="rerank", calibrate=calibrate, progress=click.echo)
    if not (folder / "openvino" / "openvino_model_qint8_quantized.xml").exists():
        _export_peers(checkpoint, calibrate, folder)
    return {
        name: bundle if name.startswith("bert-export") else checkpoint.resolve()
        if name == "sentence-transformers" else folder
        for name in ENGINES
    }  # fmt: skip


def _export_peers(checkpoint: Path, calibrate: Path, folder: Path) -> None:
    """Write sentence-transformers' quantized files into a folder."""
    rows = folder.with_name("rows")
    rows.mkdir(exist_ok=True)
    texts = [{"text": f"{record.text('text')} {record.text('text_pair')}"} for record in read_records(calibrate)[:300]]
    (rows / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
    python, variables = _interpreter("sentence-transformers")
    arguments = [python, "-c", _PREPARE, str(checkpoint.resolve()), str(folder), str(rows)]
    log = folder.with_name("prepare.log")
    with log.open("wb") as stream:
        status = subprocess.run(arguments, env=variables, stdout=stream, stderr=stream, check=False).returncode
    if status:
        raise click.ClickException(f"sentence-transformers cannot export: {log.read_text(errors='replace')[-1500:]}")
    # fastembed truncates at the smaller one of two settings, of which all-MiniLM-L6-v2 has one that no other reads.
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text("utf-8"))
    settings.write_text(json.dumps({**values, "max_length": _TOKENS, "model_max_length": _TOKENS}), encoding="utf-8")


def _summary(workers: Mapping[str, _Worker]) -> dict[str, Any]:
    """Return by engine its time, its speed-up over ours, and how close its scores are to PyTorch's."""
    timings = {name: summarize(worker.rounds) for name, worker in workers.items()}
    reference = np.array(workers["sentence-transformers"].described["scores"])
    result = {}
    for name, worker in workers.items():
        scores = np.array(worker.described["scores"])
        agreement = pearson(scores, reference)
        if agreement < _MIN_PEARSON:
            raise click.ClickException(
                f"{name}: expected scores that correlate with PyTorch's by {_MIN_PEARSON} or more, found "
                f"{agreement:.3f}; does it read the same tokens?"
            )
        result[name] = {
            "p50_ms": round(timings[name].p50_ms, 2),
            "time_per_bert_export": round(paired_speedup(timings[_OURS], timings[name]).median, 3),
            "batch_size": None if name.startswith("bert-export") else worker.described["batch_size"],
            "pearson": round(agreement, 5),
            "max_abs_logit_difference": round(float(np.abs(scores - reference).max()), 4),
        }
    return result


def results_table(path: Path) -> str:
    """Return a result file as a Markdown table, one row per engine."""
    found = json.loads(path.read_text("utf-8"))
    rows = [
        [
            f"`{name}`",
            f"{values['p50_ms']:.1f}",
            f"{values['time_per_bert_export']:.2f}",
            f"{values['pearson']:.4f}",
        ]
        for name, values in sorted(found["engines"].items(), key=lambda item: item[1]["p50_ms"])
    ]
    return markdown_table(["", "ms", "time / bert-export's", "Pearson with PyTorch's logits"], rows)


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder of a reranker.")
@path_option("--calibrate", "Rows of pairs that INT8 is calibrated on.")
@path_option("--squad", "SQuAD file of the query and the documents.")
@path_option("--folder", "Folder for what the engines load.", required=False)
@click.option("--rounds", type=int, default=9, show_default=True)
@click.option("--calls", type=int, default=4, show_default=True)
@path_option("--output", "Result file to write.")
def main(
    checkpoint: Path, calibrate: Path, squad: Path, folder: Path | None, rounds: int, calls: int, output: Path
) -> None:
    """Prepare the engines, time them, write the result."""
    threads = available_cores()
    with tempfile.TemporaryDirectory() as name:
        scratch = folder or Path(name)
        scratch.mkdir(parents=True, exist_ok=True)
        inputs = scratch / "inputs.json"
        inputs.write_text(json.dumps(make_inputs(checkpoint, squad)), encoding="utf-8")
        folders = _prepare(checkpoint, calibrate, scratch)
        workers = {engine: _Worker(engine, path, inputs, threads) for engine, path in folders.items()}
        for turn in range(rounds):
            for engine in rotated(list(workers), turn):
                workers[engine].time(calls)
        engines = _summary(workers)
        for worker in workers.values():
            worker.close()
    peers = [values for engine, values in engines.items() if not engine.startswith("bert-export")]
    result = {
        "documents": _DOCUMENTS,
        "tokens": _TOKENS,
        "rounds": rounds,
        "calls": calls,
        "engines": engines,
        "text_per_token_ids": round(1 / engines[_TOKEN_IDS]["time_per_bert_export"], 3),
        "best_peer_per_text": min(values["time_per_bert_export"] for values in peers),
    }
    write_result(output, result)
    click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
