// LayerNorm of a residual sum, and its quantization for the next int8 matmul (AddNormQuantize, and AddPreNormQuantize,
// which returns s instead of y); or without quantization (AddNorm, and AddPreNorm, which returns both).
//
//   s = x + residual
//   y = (s - mean(s)) / sqrt(var(s) + epsilon) · gamma + beta
//   quantized = saturate_u8(round(y · smoothing / scale + zero_point))
//
//   row [columns]  | block: 4 vectors of float32 | block | … |        job: kJobRows rows
//                          narrow to
//                  | 1 vector of uint8           |       | … |
//
// Three passes over a row, which stays in L1: sum and mean; variance; normalize and quantize.
#include <algorithm>
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace bert {

namespace {

constexpr size_t kJobRows = 16;
constexpr int kVectors = 4;
constexpr size_t kBlockColumns = kLanes * kVectors;

// Calls f(column, columns left) for each block of columns. The count is a compile-time constant for full blocks.
template <class F>
void for_each_block(size_t columns, const F& f) {
  size_t column = 0;
  for (; column + kBlockColumns <= columns; column += kBlockColumns)
    f(column, std::integral_constant<ptrdiff_t, kBlockColumns>{});
  if (column < columns) f(column, remaining(columns, column));
}

float sum_of_parts(const F32 (&parts)[kVectors]) { return reduce_sum((parts[0] + parts[1]) + (parts[2] + parts[3])); }

// Normalizes the sum of two rows, which it leaves in `sums`; store(column, count, values) takes each block of y.
template <class Store>
void normalize_row(const AddLayerNorm& norm, const float* a, const float* b, float* sums, const Store& store) {
  const size_t columns = norm.columns;
  F32 total[kVectors] = {}, squares[kVectors] = {};
  for_each_block(columns, [&](size_t column, auto count) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const size_t at = column + kLanes * i;
      const F32 sum = load_n(a + at, count - kLanes * i) + load_n(b + at, count - kLanes * i);
      store_n(sums + at, sum, count - kLanes * i);
      total[i] += sum;
    }
  });
  const F32 mean = set1(sum_of_parts(total) / static_cast<float>(columns));
  for_each_block(columns, [&](size_t column, auto count) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const F32 sum = load_n(sums + column + kLanes * i, count - kLanes * i);
      const F32 centred = select(first_lanes(count - kLanes * i), sum - mean, set1(0.0F));
      squares[i] = fma(centred, centred, squares[i]);
    }
  });
  const float variance = sum_of_parts(squares) / static_cast<float>(columns);
  const F32 inverse_deviation = set1(1 / __builtin_sqrtf(variance + norm.epsilon));
  for_each_block(columns, [&](size_t column, auto count) {
    F32 values[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      auto vector = [&](const float* from) { return load_n(from + column + kLanes * i, count - kLanes * i); };
      values[i] = fma((vector(sums) - mean) * inverse_deviation, vector(norm.gamma), vector(norm.beta));
    }
    store(column, count, values);
  });
}

// Calls f(row) for all rows, in parallel.
template <class F>
void for_each_row(size_t rows, const ThreadPool& threads, const F& f) {
  auto job = [&](size_t index) {
    for (size_t row = index * kJobRows; row < std::min(rows, (index + 1) * kJobRows); ++row) f(row);
  };
  if (rows) threads.parallel_for(ceil_div(rows, kJobRows), job);
}

// Stores a block of a row.
template <class Count>
void store_block(float* memory, Count count, const F32 (&values)[kVectors]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) store_n(memory + kLanes * i, values[i], count - kLanes * i);
}

}  // namespace

void AddLayerNorm::compute(float* y, uint8_t* quantized, QuantParams output, const ThreadPool& threads) const {
  const F32 zero_point = set1(static_cast<float>(output.zero_point)), inverse_scale = set1(1 / output.scale);
  for_each_row(rows, threads, [&](size_t row) {
    const size_t first = row * columns;
    normalize_row(*this, x + first, residual + first, y + first,
                  [&](size_t column, auto count, const F32(&values)[kVectors]) {
                    if (!is_pre_norm) store_block(y + first + column, count, values);
                    I32 integers[kVectors];
#pragma GCC unroll 4
                    for (int i = 0; i < kVectors; ++i) {
                      const F32 factor = load_n(smoothing + column + kLanes * i, count - kLanes * i);
                      const F32 scaled = fma(values[i] * factor, inverse_scale, zero_point);
                      integers[i] = round_to_i32(min(scaled, set1(kClampBeforeU8)));
                    }
                    store_u8_n(quantized + first + column,
                               narrow_to_u8(integers[0], integers[1], integers[2], integers[3]), count);
                  });
  });
}

void AddLayerNorm::compute(float* y, float* normalized, const ThreadPool& threads) const {
  for_each_row(rows, threads, [&](size_t row) {
    const size_t first = row * columns;
    float* to = (is_pre_norm ? normalized : y) + first;
    normalize_row(
        *this, x + first, residual + first, y + first,
        [&](size_t column, auto count, const F32(&values)[kVectors]) { store_block(to + column, count, values); });
  });
}

}  // namespace bert
