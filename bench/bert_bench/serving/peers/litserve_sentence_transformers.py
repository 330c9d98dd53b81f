"""LitServe, with dynamic batching, over sentence-transformers' ONNX backend: FOLDER PORT."""

import sys
from pathlib import Path
from typing import Any

import litserve
from sentence_transformers import SentenceTransformer

folder, port = Path(sys.argv[1]), int(sys.argv[2])


class Embeddings(litserve.LitAPI):
    """OpenAI's format; the requests of a batch are encoded together."""

    def setup(self, device: str) -> None:
        """Load the model, in the worker process."""
        (graph,) = folder.glob("onnx/*.onnx")
        self.model = SentenceTransformer(
            str(folder), backend="onnx", device="cpu", model_kwargs={"file_name": f"onnx/{graph.name}"},
            local_files_only=True,
        )  # fmt: skip

    def decode_request(self, request: dict[str, Any], **_: Any) -> list[str]:
        """Return a request's texts."""
        texts: list[str] = request["input"]
        return texts

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        """Keep the requests apart, whose numbers of texts differ."""
        return inputs

    def predict(self, requests: list[list[str]], **_: Any) -> list[list[list[float]]]:
        """Embed the texts of all requests."""
        texts = [text for request in requests for text in request]
        vectors = iter(self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False).tolist())
        return [[next(vectors) for _ in request] for request in requests]

    def unbatch(self, output: list[list[list[float]]]) -> list[list[list[float]]]:
        """Return the requests' answers."""
        return output

    def encode_response(self, output: list[list[float]], **_: Any) -> dict[str, Any]:
        """Return an answer in OpenAI's format."""
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(output)]
        return {"object": "list", "model": "minilm", "data": data}


if __name__ == "__main__":
    api = Embeddings(api_path="/v1/embeddings", max_batch_size=16, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)
