"""FastAPI over sentence-transformers' ONNX backend: FOLDER PORT."""

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder, port = Path(sys.argv[1]), int(sys.argv[2])
(graph,) = folder.glob("onnx/*.onnx")
model = SentenceTransformer(
    str(folder), backend="onnx", device="cpu", model_kwargs={"file_name": f"onnx/{graph.name}"}, local_files_only=True
)
app = FastAPI()


class EmbeddingsRequest(BaseModel):
    """A request in OpenAI's format."""

    model: str
    input: list[str]


# Not `async`: FastAPI calls it in a thread, so that the event loop goes on meanwhile.
@app.post("/v1/embeddings")
def embeddings(request: EmbeddingsRequest) -> dict[str, Any]:
    """Embed the texts."""
    vectors = model.encode(request.input, normalize_embeddings=True, show_progress_bar=False)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors.tolist())]
    return {"object": "list", "model": request.model, "data": data}


uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
