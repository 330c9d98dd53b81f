// LayerNorm of a sum, and the bytes that the next product takes.
#include <algorithm>

#include "kernels.h"
#include "simd.h"

namespace bert {

namespace {

constexpr size_t kRowsOfJob = 16;

}  // namespace

void AddNorm::run(float* y, uint8_t* bytes, Range output, const Threads& threads) const {
  const __m512 inverse_scale = _mm512_set1_ps(1 / output.scale);
  const __m512i zero_point = _mm512_set1_epi32(output.zero_point);
  auto each_column = [this](auto&& f) {
    for (size_t column = 0; column < columns; column += 16) f(column, first_lanes(columns - column));
  };
  auto job = [&](size_t number) {
    for (size_t row = number * kRowsOfJob; row < std::min(rows, (number + 1) * kRowsOfJob); ++row) {
      const float *a = x + row * columns, *b = residual + row * columns;
      float* sums = y + row * columns;
      __m512 total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
      each_column([&](size_t column, __mmask16 lanes) {
        const __m512 sum =
            _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, a + column), _mm512_maskz_loadu_ps(lanes, b + column));
        _mm512_mask_storeu_ps(sums + column, lanes, sum);
        total = _mm512_add_ps(total, sum);
      });
      const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / static_cast<float>(columns));
      each_column([&](size_t column, __mmask16 lanes) {
        const __m512 centred = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, sums + column), mean);
        squares = _mm512_fmadd_ps(centred, centred, squares);
      });
      const float variance = _mm512_reduce_add_ps(squares) / static_cast<float>(columns);
      const __m512 inverse = _mm512_set1_ps(1 / __builtin_sqrtf(variance + epsilon));
      each_column([&](size_t column, __mmask16 lanes) {
        const __m512 centred = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, sums + column), mean);
        const __m512 value =
            _mm512_fmadd_ps(_mm512_mul_ps(centred, inverse), _mm512_maskz_loadu_ps(lanes, gamma + column),
                            _mm512_maskz_loadu_ps(lanes, beta + column));
        _mm512_mask_storeu_ps(sums + column, lanes, value);
        const __m512 smoothed = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, smoothing + column));
        _mm_mask_storeu_epi8(bytes + row * columns + column, lanes,
                             to_bytes(_mm512_mul_ps(smoothed, inverse_scale), zero_point));
      });
    }
  };
  if (rows) threads.each(ceil_div(rows, kRowsOfJob), job);
}

}  // namespace bert
