// The bytes of A that the GEMM microkernel reads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gemm_microkernel.h"
#include "simd.h"

namespace bert {

// What the microkernel reads is a uint8 of A less this: instructions that multiply signed bytes alone need signed A.
template <class Dot>
constexpr int kInputShift = std::is_same_v<typename Dot::Input, int8_t> ? 128 : 0;

// Rows of A that are read together: those of a tile, or one.
template <class Dot>
constexpr size_t kRowUnit = kHasTiles<Dot> ? kTileRows : 1;

// Bytes of a row of A that the microkernel reads, in whole steps.
template <class Dot>
size_t a_row_bytes(size_t in_features) {
  return round_up(in_features * sizeof(typename Dot::Input), kDepthBytes<typename Dot::Input>);
}

#ifdef BERT_BF16
// Rounds rows [rows, columns] to bfloat16, with 0 behind the columns.
inline void narrow_rows(const float* x, size_t rows, size_t columns, BFloat16* y) {
  const size_t stride = a_row_bytes<DotBF16>(columns) / sizeof(BFloat16);
  for (size_t row = 0; row < rows; ++row, x += columns, y += stride)
    for (size_t i = 0; i < stride; i += 2 * kLanes)
      store_u8_n(reinterpret_cast<uint8_t*>(y + i), load_bf16(x + i, remaining(columns, i)), 2 * remaining(stride, i));
}
#endif

#ifdef BERT_AMX
// `count` elements of a row, at least 1, as the 64 bytes of a tile's row, with 0 behind them.
inline I32 tile_row(const uint8_t* x, size_t count) {
  return _mm512_maskz_loadu_epi8(count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1, x);
}
inline I32 tile_row(const float* x, size_t count) { return load_bf16(x, static_cast<ptrdiff_t>(count)); }
#endif

// Writes rows of A [rows, columns] as the microkernel reads them, `a_row_bytes` apart: widened if it takes wider
// integers, less kInputShift if it takes signed ones, rounded if it takes bfloat16. Tiles [16, 64 bytes] follow each
// other, [rows / 16, a_row_bytes / 64, 16, 64]: there, rows behind the last hold anything.
template <class Dot, class Input>
void write_microkernel_rows(const Input* x, size_t rows, size_t columns, uint8_t* memory) {
  using Wide = typename Dot::Input;
#ifdef BERT_AMX
  if constexpr (kHasTiles<Dot>) {
    constexpr size_t kUnit = kRowUnit<Dot>, kElements = 64 / sizeof(Wide);
    const size_t stride = a_row_bytes<Dot>(columns);
    for (size_t row = 0; row < rows; ++row) {
      uint8_t* to = memory + row / kUnit * kUnit * stride + row % kUnit * 64;
      for (size_t i = 0; i < columns; i += kElements, to += kUnit * 64)
        store_i32(to, tile_row(x + row * columns + i, columns - i));
    }
    return;
  }
#endif
#ifdef BERT_BF16
  if constexpr (std::is_same_v<Wide, BFloat16>) narrow_rows(x, rows, columns, reinterpret_cast<Wide*>(memory));
#else
  if constexpr (!std::is_same_v<Wide, Input>)  // those are read as they are
    std::transform(x, x + rows * columns, reinterpret_cast<Wide*>(memory),
                   [](Input element) { return static_cast<Wide>(element - kInputShift<Dot>); });
#endif
}

// Returns rows of A as the microkernel reads them: as they are, or in this thread's memory.
template <class Dot, class Input>
const uint8_t* microkernel_rows(const Input* x, size_t rows, size_t columns) {
  if constexpr (std::is_same_v<typename Dot::Input, Input> && !kHasTiles<Dot>) {
    return reinterpret_cast<const uint8_t*>(x);
  } else {
    static thread_local Scratch scratch;
    uint8_t* memory = scratch.reserve(round_up(rows, kRowUnit<Dot>) * a_row_bytes<Dot>(columns));
    write_microkernel_rows<Dot>(x, rows, columns, memory);
    return memory;
  }
}

}  // namespace bert
