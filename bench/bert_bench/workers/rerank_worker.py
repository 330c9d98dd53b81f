"""A process that reranks documents with one engine and times it; it runs in the engine's own environment.

Read lines from stdin, each a number of calls to time, and write a JSON list of milliseconds for each. The first line
written describes the engine: its scores, and the batch size that a trial found fastest.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "main"]

Rerank = Callable[[str, list[str], int], Any]
"""Return the scores of documents for a query, computed in batches of a size."""

_BATCH_SIZES = (2, 8, 32)


def open_bert_export(folder: Path, threads: int) -> Rerank:
    """Open a bundle in INT8; it divides the documents into batches itself."""
    from bert_runtime import load

    model = load(folder, precision="int8", threads=threads)

    def rerank(query: str, documents: list[str], batch_size: int) -> Any:
        ranked = model.rank(query, documents)
        return [item.logit for item in sorted(ranked, key=lambda item: item.index)]

    return rerank


def open_token_ids(folder: Path, threads: int) -> Rerank:
    """Open a bundle in INT8, and run token ids that are ready."""
    from bert_runtime import load
    from bert_runtime.tokenization import Batch, pad

    model = load(folder, precision="int8", threads=threads)
    batches: dict[str, Batch] = {}

    def rerank(query: str, documents: list[str], batch_size: int) -> Any:
        if query not in batches:
            encoded = model.tokenize([(query, document) for document in documents])
            batches[query] = pad([item.windows[0] for item in encoded], model.tokenizer.pad_token_id)
        return model.run(batches[query])[:, 0].tolist()

    return rerank


def _open_sentence_transformers(folder: Path, backend: str, **options: Any) -> Rerank:
    import torch
    from sentence_transformers import CrossEncoder

    model: Any = CrossEncoder(str(folder), backend=backend, device="cpu", model_kwargs=options, local_files_only=True)

    def rerank(query: str, documents: list[str], batch_size: int) -> Any:
        ranked = model.rank(query, documents, batch_size=batch_size, activation_fn=torch.nn.Identity())
        return [float(item["score"]) for item in sorted(ranked, key=lambda item: item["corpus_id"])]

    return rerank


def open_sentence_transformers(folder: Path, threads: int) -> Rerank:
    """Open the checkpoint in PyTorch, FP32."""
    import torch

    torch.set_num_threads(threads)
    return _open_sentence_transformers(folder, "torch")


def open_sentence_transformers_onnx(folder: Path, threads: int) -> Rerank:
    """Open the dynamically quantized ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = "onnx/model_qint8_avx512_vnni.onnx"
    return _open_sentence_transformers(
        folder, "onnx", provider="CPUExecutionProvider", session_options=options, file_name=file
    )


def open_sentence_transformers_openvino(folder: Path, threads: int) -> Rerank:
    """Open the statically quantized OpenVINO file."""
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    file = "openvino/openvino_model_qint8_quantized.xml"
    return _open_sentence_transformers(folder, "openvino", ov_config=settings, file_name=file)


def open_fastembed(folder: Path, threads: int) -> Rerank:
    """Open the dynamically quantized ONNX file as a custom model."""
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    name, file = "bert-bench/reranker", "onnx/model_qint8_avx512_vnni.onnx"
    TextCrossEncoder.add_custom_model(model=name, sources=ModelSource(hf=name), model_file=file)
    model = TextCrossEncoder(name, threads=threads, specific_model_path=str(folder))

    def rerank(query: str, documents: list[str], batch_size: int) -> Any:
        return list(map(float, model.rerank(query, documents, batch_size=batch_size)))

    return rerank


ENGINES: dict[str, Callable[[Path, int], Rerank]] = {
    "bert-export-int8": open_bert_export,
    "bert-export-int8-token-ids": open_token_ids,
    "sentence-transformers": open_sentence_transformers,
    "sentence-transformers-onnx-int8": open_sentence_transformers_onnx,
    "sentence-transformers-openvino-int8": open_sentence_transformers_openvino,
    "fastembed-onnx-int8": open_fastembed,
}
"""How each engine is opened, from its folder and a number of threads."""


def main(engine: str, folder: str, threads: str, inputs: str) -> None:
    """Open the engine, and time calls as stdin asks for them."""
    rerank = ENGINES[engine](Path(folder), int(threads))
    found = json.loads(Path(inputs).read_text("utf-8"))
    query, documents = found["query"], found["documents"]
    sizes = _BATCH_SIZES if not engine.startswith("bert-export") else _BATCH_SIZES[-1:]
    trials = {size: min(_time(rerank, query, documents, size) for _ in range(3)) for size in sizes}
    batch_size = min(trials, key=trials.__getitem__)
    scores = rerank(query, documents, batch_size)
    _answer({"scores": scores, "batch_size": batch_size, "trials_ms": trials})
    for line in sys.stdin:
        _answer([_time(rerank, query, documents, batch_size) for _ in range(int(line))])


def _time(rerank: Rerank, query: str, documents: list[str], batch_size: int) -> float:
    start = time.perf_counter()
    rerank(query, documents, batch_size)
    return (time.perf_counter() - start) * 1e3


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
