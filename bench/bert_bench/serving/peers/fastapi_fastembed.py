"""FastAPI over fastembed: FOLDER PORT."""

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from pydantic import BaseModel

NAME = "bert-bench/checkpoint"

folder, port = Path(sys.argv[1]), int(sys.argv[2])
(graph,) = folder.glob("onnx/*.onnx")
TextEmbedding.add_custom_model(
    model=NAME, pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf=NAME), dim=384,
    model_file=f"onnx/{graph.name}",
)  # fmt: skip
model = TextEmbedding(NAME, specific_model_path=str(folder))
app = FastAPI()


class EmbeddingsRequest(BaseModel):
    """A request in OpenAI's format."""

    model: str
    input: list[str]


@app.post("/v1/embeddings")
def embeddings(request: EmbeddingsRequest) -> dict[str, Any]:
    """Embed the texts."""
    vectors = [vector.tolist() for vector in model.embed(request.input)]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    return {"object": "list", "model": request.model, "data": data}


uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
