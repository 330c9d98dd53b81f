// Normalizes and quantizes a row: shared by layer_norm.cc and embeddings.cc.
//
//   row [columns]  | block: 4 vectors of float32 | block | … |        job: kJobRows rows
//                          narrow to
//                  | 1 vector of uint8           |       | … |
//
// Three passes over a row, which stays in L1: sum and mean; variance; normalize and quantize.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace bert {

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

inline float sum_of_parts(const F32 (&parts)[kVectors]) {
  return reduce_sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// Normalizes a row. make_sum(column, count) makes a vector of it, the row is left in `sums` as it was made, and
// store(column, count, values) takes each block of y. `norm` has columns, gamma, beta and epsilon.
template <class Norm, class Sum, class Store>
void normalize_row(const Norm& norm, float* sums, const Sum& make_sum, const Store& store) {
  const size_t columns = norm.columns;
  F32 total[kVectors] = {}, squares[kVectors] = {};
  for_each_block(columns, [&](size_t column, auto count) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const F32 sum = make_sum(column + kLanes * i, count - kLanes * i);
      store_n(sums + column + kLanes * i, sum, count - kLanes * i);
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

// Quantizes and stores a block of a row: saturate_u8(round(values · smoothing / scale + zero_point)).
template <class Count>
void quantize_block(uint8_t* memory, Count count, const F32 (&values)[kVectors], const float* smoothing,
                    F32 inverse_scale, F32 zero_point) {
  I32 integers[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const F32 factor = load_n(smoothing + kLanes * i, count - kLanes * i);
    const F32 scaled = fma(values[i] * factor, inverse_scale, zero_point);
    integers[i] = round_to_i32(min(scaled, set1(kClampBeforeU8)));
  }
  store_u8_n(memory, narrow_to_u8(integers[0], integers[1], integers[2], integers[3]), count);
}

}  // namespace bert
