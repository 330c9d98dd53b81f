"""MLServer over sentence-transformers' ONNX backend, as a custom runtime with adaptive batching: FOLDER PORT."""

import asyncio
import sys
from pathlib import Path

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse
from sentence_transformers import SentenceTransformer


class Embeddings(MLModel):
    """A model of the Open Inference Protocol."""

    async def load(self) -> bool:
        """Load the model."""
        folder = Path(str(self.settings.parameters.uri))
        (graph,) = folder.glob("onnx/*.onnx")
        self._model = SentenceTransformer(
            str(folder), backend="onnx", device="cpu", model_kwargs={"file_name": f"onnx/{graph.name}"},
            local_files_only=True,
        )  # fmt: skip
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Embed the texts of a batch."""
        texts = StringCodec.decode_input(payload.inputs[0])
        vectors = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        output = NumpyCodec.encode_output("embedding", vectors)
        return InferenceResponse(model_name=self.name, outputs=[output])


async def main(folder: str, port: int) -> None:
    """Serve until the process is ended."""
    # No pool of processes: with one model on two cores it only adds a copy.
    settings = Settings(
        host="127.0.0.1", http_port=port, grpc_port=port + 1, metrics_port=port + 2, parallel_workers=0, debug=False
    )
    model = ModelSettings(
        name="minilm", implementation=Embeddings, max_batch_size=32, max_batch_time=0.001,
        parameters=ModelParameters(uri=folder),
    )  # fmt: skip
    server = MLServer(settings)
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
