"""Quantize to INT8: encoder projections with 8-bit weights and activations, everything else in FP32.

Weights are signed 8-bit with one scale per output channel, activations unsigned 8-bit with one scale per tensor:
u8 × s8 is the only combination with a VNNI path on x64. Large embedding tables are stored in 8 bits with a scale per
row; they are converted to FP32 when read. LayerNorm, softmax, GELU, residuals and the head stay in FP32.

Accuracy is lost mostly in the activations, which have outliers in a few channels. `quantize` takes the outliers out, as
measured on calibration texts: see `smoothing` (SmoothQuant), `outlier_splitting` and `weights` (GPTQ).
"""

from bert_export.quantization.calibration import Activations, measure_activations
from bert_export.quantization.dynamic import quantize_dynamic
from bert_export.quantization.projections import expected_projections
from bert_export.quantization.static import quantize
from bert_export.quantization.weights import choose_weight_bits

__all__ = [
    "Activations",
    "choose_weight_bits",
    "expected_projections",
    "measure_activations",
    "quantize",
    "quantize_dynamic",
]
