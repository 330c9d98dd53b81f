// LayerNorm of a sum, and the bytes that the next product takes.
#include <algorithm>

#include "kernels.h"
#include "simd.h"

namespace bert {

namespace {

constexpr size_t kRowsOfJob = 16;
constexpr int kVectors = 4;  // are added up at a time, and make 64 bytes
constexpr size_t kWidth = 16 * kVectors;

struct AllLanes {
  __mmask16 operator()(int) const { return 0xffff; }
  __mmask64 bytes() const { return ~__mmask64(0); }
};

struct SomeLanes {
  size_t count;
  __mmask16 operator()(int vector) const { return first_lanes(static_cast<ptrdiff_t>(count) - 16 * vector); }
  __mmask64 bytes() const { return (__mmask64(1) << count) - 1; }
};

// f(column, lanes) for every 64 columns.
template <class F>
void each_width(size_t columns, const F& f) {
  size_t column = 0;
  for (; column + kWidth <= columns; column += kWidth) f(column, AllLanes{});
  if (column < columns) f(column, SomeLanes{columns - column});
}

float sum_of(const __m512 (&parts)[kVectors]) {
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(parts[0], parts[1]), _mm512_add_ps(parts[2], parts[3])));
}

}  // namespace

void AddNorm::run(float* y, uint8_t* bytes, Range output, const Threads& threads) const {
  const __m512 zero_point = _mm512_set1_ps(output.zero_point);
  const float steps = 1 / output.scale;
  auto row_of = [&](const float* a, const float* b, float* sums, uint8_t* row_bytes) {
    __m512 total[kVectors] = {}, squares[kVectors] = {};
    each_width(columns, [&](size_t column, auto lanes) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = column + 16 * i;
        const __m512 left = _mm512_maskz_loadu_ps(lanes(i), a + at), right = _mm512_maskz_loadu_ps(lanes(i), b + at);
        const __m512 sum = _mm512_add_ps(left, right);
        _mm512_mask_storeu_ps(sums + at, lanes(i), sum);
        total[i] = _mm512_add_ps(total[i], sum);
      }
    });
    const __m512 mean = _mm512_set1_ps(sum_of(total) / static_cast<float>(columns));
    each_width(columns, [&](size_t column, auto lanes) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const __m512 sum = _mm512_maskz_loadu_ps(lanes(i), sums + column + 16 * i);
        const __m512 centred = _mm512_maskz_sub_ps(lanes(i), sum, mean);
        squares[i] = _mm512_fmadd_ps(centred, centred, squares[i]);
      }
    });
    const float variance = sum_of(squares) / static_cast<float>(columns);
    const __m512 inverse = _mm512_set1_ps(1 / __builtin_sqrtf(variance + epsilon));
    each_width(columns, [&](size_t column, auto lanes) {
      __m512i integers[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = column + 16 * i;
        auto load = [&](const float* from) { return _mm512_maskz_loadu_ps(lanes(i), from + at); };
        const __m512 centred = _mm512_sub_ps(load(sums), mean);
        const __m512 value = _mm512_fmadd_ps(_mm512_mul_ps(centred, inverse), load(gamma), load(beta));
        _mm512_mask_storeu_ps(sums + at, lanes(i), value);
        const __m512 scaled = _mm512_fmadd_ps(_mm512_mul_ps(value, load(smoothing)), _mm512_set1_ps(steps), zero_point);
        integers[i] = _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(kMoreThanBytes)));
      }
      const __m512i packed = to_bytes(integers[0], integers[1], integers[2], integers[3]);
      _mm512_mask_storeu_epi8(row_bytes + column, lanes.bytes(), packed);
    });
  };
  auto job = [&](size_t number) {
    for (size_t row = number * kRowsOfJob; row < std::min(rows, (number + 1) * kRowsOfJob); ++row)
      row_of(x + row * columns, residual + row * columns, y + row * columns, bytes + row * columns);
  };
  if (rows) threads.each(ceil_div(rows, kRowsOfJob), job);
}

}  // namespace bert
