// GEMM epilogues: what happens to a tile of outputs before it is stored. Each has
//   prefetch<R>(position)             asks for the cache lines of y that the tile will be written to
//   store_tile<R>(position, value)    stores value(r, half), the dequantized accumulators with the bias added
#pragma once
#include <cstddef>
#include <cstdint>

#include "gelu.h"
#include "gemm_microkernel.h"

namespace bert {

// Where a tile of R × kPanelColumns lies in C [M, N].
struct TilePosition {
  size_t row, column;           // of the first element
  ptrdiff_t remaining_columns;  // up to N
  const uint8_t* prefetch;      // part of the next B panel that the microkernel prefetches meanwhile
};

// Prefetches R rows of `row_bytes` bytes that are `stride` bytes apart, for writing. The rows are pages apart, where
// the processor's own prefetchers do not look.
template <int R>
inline void prefetch_rows(const void* first, size_t stride, size_t row_bytes) {
  for (int r = 0; r < R; ++r)
    for (size_t byte = 0; byte < row_bytes; byte += 64)
      __builtin_prefetch(static_cast<const char*>(first) + r * stride + byte, 1);
}

struct Identity {
  F32 operator()(F32 x) const { return x; }
};

// y [M, N] = activation(value), float32
template <class Activation>
struct StoreF32 {
  float* y;
  size_t columns;  // N
  Activation activation;

  template <int R>
  void prefetch(const TilePosition& position) const {
    prefetch_rows<R>(y + position.row * columns + position.column, columns * sizeof(float),
                     kPanelColumns * sizeof(float));
  }

  template <int R, class Value>
  void store_tile(const TilePosition& position, const Value& value) const {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        store_n(y + (position.row + r) * columns + position.column + kLanes * half, activation(value(r, half)),
                position.remaining_columns - kLanes * half);
    }
  }
};

// y [M, N] = quantize(GELU(value)), uint8; values are in quantization steps of y.
struct StoreQuantizedGelu {
  uint8_t* y;
  size_t columns;  // N
  const QuantizedGelu& gelu;

  template <int R>
  void prefetch(const TilePosition& position) const {
    prefetch_rows<R>(y + position.row * columns + position.column, columns, 1);
  }

  template <int R, class Value>
  void store_tile(const TilePosition& position, const Value& value) const {
    store_tile_u8<R>(y + position.row * columns + position.column, columns, position.remaining_columns,
                     [&](int r, int half) BERT_ALWAYS_INLINE { return quantized_gelu(value(r, half), gelu); });
  }
};

}  // namespace bert
