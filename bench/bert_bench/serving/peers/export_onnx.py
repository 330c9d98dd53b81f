"""Export a sentence-transformers checkpoint to ONNX, in FP32 and in INT8: CHECKPOINT OUTPUT PRESET.

OUTPUT/fp32 and OUTPUT/int8 then hold one graph each, in `onnx/`, where sentence-transformers looks for it;
OUTPUT/fp32-flat and OUTPUT/int8-flat hold it beside the tokenizer. The INT8 graph has the name that infinity looks for.
"""

import shutil
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

checkpoint, output, preset = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
model = SentenceTransformer(str(checkpoint), backend="onnx", device="cpu")
model.save_pretrained(str(output / "fp32"))
model.save_pretrained(str(output / "int8"))
export_dynamic_quantized_onnx_model(model, preset, str(output / "int8"))
onnx = output / "int8" / "onnx"
(onnx / "model.onnx").unlink()
(quantized,) = onnx.glob(f"model_q*_{preset}.onnx")
shutil.move(quantized, onnx / "model_quantized.onnx")
for name in ("fp32", "int8"):
    flat = output / f"{name}-flat"
    shutil.copytree(output / name, flat, ignore=shutil.ignore_patterns("onnx"))
    for graph in (output / name / "onnx").iterdir():
        shutil.copy(graph, flat / graph.name)
