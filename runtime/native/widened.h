// The bytes of A that the GEMM microkernel reads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace bert {

// What the microkernel reads is a uint8 of A less this: instructions that multiply signed bytes alone need signed A.
template <class Dot>
constexpr int kInputShift = std::is_same_v<typename Dot::Input, int8_t> ? 128 : 0;

// Bytes of a row of A that the microkernel reads, in whole steps.
template <class Dot>
size_t a_row_bytes(size_t in_features) {
  return round_up(in_features * sizeof(typename Dot::Input), 4);
}

#ifdef BERT_BF16
// Rounds rows [rows, columns] to bfloat16, with 0 behind an odd number of columns.
inline void narrow_rows(const float* x, size_t rows, size_t columns, BFloat16* y) {
  const size_t stride = round_up(columns, 2);
  for (size_t row = 0; row < rows; ++row, x += columns, y += stride)
    for (size_t i = 0; i < columns; i += 2 * kLanes) {
      const F32 low = load_n(x + i, remaining(columns, i));
      const F32 high = load_n(x + i + kLanes, remaining(columns, i + kLanes));
      store_u8_n(reinterpret_cast<uint8_t*>(y + i), narrow_to_bf16(low, high), 2 * remaining(stride, i));
    }
}
#endif

// Returns rows of A [rows, columns] as the microkernel reads them, `a_row_bytes` apart: as they are, or in this
// thread's memory, widened if it takes wider integers, less kInputShift if it takes signed ones, rounded if it takes
// bfloat16.
template <class Dot, class Input>
const uint8_t* microkernel_rows(const Input* x, size_t rows, size_t columns) {
  using Wide = typename Dot::Input;
  if constexpr (std::is_same_v<Wide, Input>) {
    return reinterpret_cast<const uint8_t*>(x);
  } else {
    static thread_local Scratch scratch;
    uint8_t* memory = scratch.reserve(rows * a_row_bytes<Dot>(columns));
#ifdef BERT_BF16
    narrow_rows(x, rows, columns, reinterpret_cast<Wide*>(memory));
#else
    std::transform(x, x + rows * columns, reinterpret_cast<Wide*>(memory),
                   [](Input element) { return static_cast<Wide>(element - kInputShift<Dot>); });
#endif
    return memory;
  }
}

}  // namespace bert
