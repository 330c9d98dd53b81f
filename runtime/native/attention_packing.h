// Packs rows of floats, such as keys, as the columns of panels for the microkernel: in float32, or quantized to int16.
#pragma once
#include <algorithm>
#include <cmath>

#include "gemm_microkernel.h"

namespace bert {

// Packs `count` rows of head_size floats, row(0), row(1), …, as the columns of panels, with zeros for the columns from
// `count` to `padded`.
template <class Row>
void pack_rows(const Row& row, size_t count, size_t padded, size_t head_size, float* panels) {
  const size_t padded_size = round_up(head_size, kLanes);
  for (size_t first = 0; first < padded; first += kLanes)
    for (size_t i = 0; i < head_size; i += kLanes) {
      I32 rows[kLanes];
      for (size_t lane = 0; lane < kLanes; ++lane)
        rows[lane] =
            first + lane < count ? bit_cast_i32(load_n(row(first + lane) + i, remaining(head_size, i))) : zero_i32();
      transpose_4_bytes(rows);
      float* panel = panels + first / kPanelColumns * kPanelColumns * padded_size + i * kPanelColumns;
      for (size_t lane = 0; lane < kLanes; ++lane)
        store_i32(panel + first % kPanelColumns + kPanelColumns * lane, rows[lane]);
    }
}

constexpr double kMaxInt32 = 2147483647;
constexpr float kMaxInt16 = 32767;
constexpr size_t kPrefetchDistance = 8;  // rows between a prefetch and its use
constexpr float kMinAbs = 1e-30F;        // keeps the scale of an all-zero tensor above 0

// max |x| of rows of `size` floats that are `stride` apart; skips rows that are not `attended` (null: reads all rows)
// and NaN.
inline float abs_max(const float* rows, size_t count, size_t size, size_t stride, const uint8_t* attended) {
  F32 result = set1(kMinAbs);
  for (size_t row = 0; row < count; ++row, rows += stride) {
    for (size_t i = 0; i < size; i += kLanes) __builtin_prefetch(rows + kPrefetchDistance * stride + i);
    if (attended && !attended[row]) continue;
    for (size_t i = 0; i < size; i += kLanes)
      result = max(abs(load_n(rows + i, remaining(size, i))), result);  // in this order max drops NaN
  }
  return reduce_max(result);
}

// Quantizes elements `first` … `first` + 2·kLanes - 1 of a row to int16, in the order of narrow_to_i16_unordered.
inline I32 quantize_i16(const float* row, size_t size, size_t first, F32 inverse_scale) {
  return narrow_to_i16_unordered(
      round_to_i32(load_n(row + first, remaining(size, first)) * inverse_scale),
      round_to_i32(load_n(row + first + kLanes, remaining(size, first + kLanes)) * inverse_scale));
}

// Steps of queries and keys from 0 to the largest: head_size · steps² ≤ kMaxInt32.
inline float max_query_steps(size_t head_size) {
  return std::min(kMaxInt16, static_cast<float>(std::floor(std::sqrt(kMaxInt32 / static_cast<double>(head_size)))));
}

// Packs `count` rows of 16-bit elements as the columns of panels, with zeros for the columns from `count` to `padded`.
// row(token, i) are elements i … i + kPanelColumns - 1 of a row.
template <class Row, class T>
void pack_pairs(const Row& row, size_t count, size_t padded, size_t head_size, T* panels) {
  const size_t padded_size = round_up(head_size, kPanelColumns);
  for (size_t first = 0; first < padded; first += kLanes)
    for (size_t i = 0; i < padded_size; i += kPanelColumns) {
      I32 rows[kLanes];
      for (size_t lane = 0; lane < kLanes; ++lane)
        rows[lane] = first + lane < count ? row(first + lane, i) : zero_i32();
      transpose_4_bytes(rows);
      T* panel =
          panels + first / kPanelColumns * kPanelColumns * padded_size + (first % kPanelColumns + kLanes * i) * 2;
      for (size_t pair = 0; pair < kLanes; ++pair) store_i32(panel + 2 * kPanelColumns * pair, pair_i16(rows[pair]));
    }
}

// Quantizes `count` rows of head_size floats, row(0), row(1), …, and packs them.
template <class Row>
void pack_rows(const Row& row, size_t count, size_t padded, size_t head_size, F32 inverse_scale, int16_t* panels) {
  auto quantized = [&](size_t token, size_t i) { return quantize_i16(row(token), head_size, i, inverse_scale); };
  pack_pairs(quantized, count, padded, head_size, panels);
}

#ifdef BERT_BF16
// pack_pairs for panels whose columns have four elements together.
template <class Row, class T>
void pack_quads(const Row& row, size_t count, size_t padded, size_t head_size, T* panels) {
  const size_t padded_size = round_up(head_size, kPanelColumns);
  for (size_t token = 0; token < padded; ++token)
    for (size_t i = 0; i < padded_size; i += 8) {
      const I32 quads = token < count ? row(token, i) : zero_i32();
      for (int half = 0; half < 2; ++half) {
        T* column = panels + token / kPanelColumns * kPanelColumns * padded_size + token % kPanelColumns * 4;
        store_u8_half_n(reinterpret_cast<uint8_t*>(column + (i + 4 * half) * kPanelColumns), quads, half, 8);
      }
    }
}

// Rounds `count` rows of head_size floats, row(0), row(1), …, to bfloat16, and packs them.
template <class Row>
void pack_rows(const Row& row, size_t count, size_t padded, size_t head_size, BFloat16* panels) {
  auto rounded = [&](size_t token, size_t i) { return load_bf16(row(token) + i, remaining(head_size, i)); };
  if constexpr (kBf16Group == 2)
    pack_pairs(rounded, count, padded, head_size, panels);
  else
    pack_quads(rounded, count, padded, head_size, panels);
}
#endif

// Elements of a panel's column that lie together.
#ifdef BERT_BF16
template <class T>
constexpr size_t kPanelGroup = sizeof(T) == 2 ? kBf16Group : 1;
#else
template <class T>
constexpr size_t kPanelGroup = 1;
#endif

// Packs values [count, head_size] in panels of `rows` tokens, a multiple of kPanelGroup, in float32 or rounded to
// bfloat16. Zeros stand for keys that no query attends to: padding may hold NaN or infinity, and their product with a
// probability of 0 is not 0. Null `attended` stands for all keys.
template <class T>
void pack_values(const float* source, size_t stride, const uint8_t* attended, size_t count, size_t rows,
                 size_t head_size, T* values) {
  auto value = [&](size_t token, size_t i) {
    const bool is_attended = token < count && (!attended || attended[token]);
    return is_attended ? load_n(source + token * stride + i, remaining(head_size, i)) : set1(0.0F);
  };
  for (size_t token = 0; token < rows; token += kPanelGroup<T>)
    for (size_t i = 0; i < round_up(head_size, kPanelColumns); i += kLanes) {
      T* group = values + (i / kPanelColumns * rows + token) * kPanelColumns + i % kPanelColumns * kPanelGroup<T>;
#ifdef BERT_BF16
      if constexpr (sizeof(T) == 2) {
        F32 columns[kBf16Group];
        for (size_t row = 0; row < kBf16Group; ++row) columns[row] = value(token + row, i);
        store_bf16_columns(group, columns);
      } else
#endif
        store(group, value(token, i));
    }
}

}  // namespace bert
