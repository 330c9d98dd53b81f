// LayerNorm of a residual sum, and its quantization for the next int8 matmul (AddNormQuantize, and AddPreNormQuantize,
// which returns s instead of y); or without quantization (AddNorm, and AddPreNorm, which returns both).
//
//   s = x + residual
//   y = (s - mean(s)) / sqrt(var(s) + epsilon) · gamma + beta
//   quantized = saturate_u8(round(y · smoothing / scale + zero_point))
// Blocks of a row: see layer_norm.h.
#include "layer_norm.h"

namespace bert {

void AddLayerNorm::compute(float* y, uint8_t* quantized, QuantParams output, const ThreadPool& threads) const {
  const F32 zero_point = set1(static_cast<float>(output.zero_point)), inverse_scale = set1(1 / output.scale);
  for_each_row(rows, threads, [&](size_t row) {
    const size_t first = row * columns;
    normalize_row(
        *this, y + first,
        [&](size_t at, auto count) { return load_n(x + first + at, count) + load_n(residual + first + at, count); },
        [&](size_t column, auto count, const F32(&values)[kVectors]) {
          if (!is_pre_norm) store_block(y + first + column, count, values);
          quantize_block(quantized + first + column, count, values, smoothing + column, inverse_scale, zero_point);
        });
  });
}

void AddLayerNorm::compute(float* y, float* normalized, const ThreadPool& threads) const {
  for_each_row(rows, threads, [&](size_t row) {
    const size_t first = row * columns;
    float* to = (is_pre_norm ? normalized : y) + first;
    normalize_row(
        *this, y + first,
        [&](size_t at, auto count) { return load_n(x + first + at, count) + load_n(residual + first + at, count); },
        [&](size_t column, auto count, const F32(&values)[kVectors]) { store_block(to + column, count, values); });
  });
}

}  // namespace bert
