// LayerNorm of a sum, and the bytes that the next product takes.
#include <algorithm>
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace bert {

namespace {

constexpr size_t kRowsOfJob = 16;
constexpr int kVectors = 4;  // are added up at a time, and make one of bytes
constexpr size_t kWidth = kLanes * kVectors;

// f(column, columns left) for every few vectors; what is left is a constant where it is enough for all of them.
template <class F>
void each_width(size_t columns, const F& f) {
  size_t column = 0;
  for (; column + kWidth <= columns; column += kWidth) f(column, std::integral_constant<ptrdiff_t, kWidth>{});
  if (column < columns) f(column, left(columns, column));
}

float sum_of_all(const F32 (&parts)[kVectors]) { return sum_of((parts[0] + parts[1]) + (parts[2] + parts[3])); }

}  // namespace

void AddNorm::run(float* y, uint8_t* bytes, Range output, const Threads& threads) const {
  const F32 zero_point = all(static_cast<float>(output.zero_point)), steps = all(1 / output.scale);
  auto row_of = [&](const float* a, const float* b, float* sums, uint8_t* row_bytes) {
    F32 total[kVectors] = {}, squares[kVectors] = {};
    each_width(columns, [&](size_t column, auto left) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = column + kLanes * i;
        const F32 sum = load(a + at, left - kLanes * i) + load(b + at, left - kLanes * i);
        store(sums + at, sum, left - kLanes * i);
        total[i] += sum;
      }
    });
    const F32 mean = all(sum_of_all(total) / static_cast<float>(columns));
    each_width(columns, [&](size_t column, auto left) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const F32 sum = load(sums + column + kLanes * i, left - kLanes * i);
        const F32 centred = select(first_lanes(left - kLanes * i), sum - mean, all(0.0f));
        squares[i] = fma(centred, centred, squares[i]);
      }
    });
    const float variance = sum_of_all(squares) / static_cast<float>(columns);
    const F32 inverse = all(1 / __builtin_sqrtf(variance + epsilon));
    each_width(columns, [&](size_t column, auto left) {
      I32 integers[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const size_t at = column + kLanes * i;
        auto part = [&](const float* from) { return load(from + at, left - kLanes * i); };
        const F32 value = fma((part(sums) - mean) * inverse, part(gamma), part(beta));
        store(sums + at, value, left - kLanes * i);
        const F32 scaled = fma(value * part(smoothing), steps, zero_point);
        integers[i] = nearest_ints(min(scaled, all(kMoreThanBytes)));
      }
      store_bytes(row_bytes + column, to_bytes(integers[0], integers[1], integers[2], integers[3]), left);
    });
  };
  auto job = [&](size_t number) {
    for (size_t row = number * kRowsOfJob; row < std::min(rows, (number + 1) * kRowsOfJob); ++row)
      row_of(x + row * columns, residual + row * columns, y + row * columns, bytes + row * columns);
  };
  if (rows) threads.each(ceil_div(rows, kRowsOfJob), job);
}

}  // namespace bert
