// GEMM epilogues: what happens to a tile of outputs before it is stored. Each has
//   prefetch<R>(position)             asks for the cache lines of y that the tile will be written to
//   store_tile<R>(position, value)    stores value(r, half), the dequantized accumulators with the bias added
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gelu.h"
#include "gemm_block.h"
#include "silu.h"

namespace bert {

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

// y [M, columns] = activation(gate) · up, float32. Gates are in the first vector of a tile, ups in the second.
template <class Activation>
struct StoreGated {
  float* y;
  size_t columns;
  Activation activation;

  template <int R>
  void prefetch(const TilePosition& position) const {
    prefetch_rows<R>(y + position.row * columns + position.column / 2, columns * sizeof(float), kLanes * sizeof(float));
  }

  template <int R, class Value>
  void store_tile(const TilePosition& position, const Value& value) const {
    const size_t column = position.column / 2;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      store_n(y + (position.row + r) * columns + column, activation(value(r, 0)) * value(r, 1),
              remaining(columns, column));
  }
};

// y [M, columns] = quantize(activation(gate) · up), uint8.
template <class Activation>
struct StoreQuantizedGated {
  uint8_t* y;
  size_t columns;
  Activation activation;
  QuantParams output;

  template <int R>
  void prefetch(const TilePosition& position) const {
    prefetch_rows<R>(y + position.row * columns + position.column / 2, columns, 1);
  }

  template <int R, class Value>
  void store_tile(const TilePosition& position, const Value& value) const {
    const size_t column = position.column / 2, count = std::min<size_t>(kLanes, columns - column);
    const F32 inverse_scale = set1(1 / output.scale), zero_point = set1(static_cast<float>(output.zero_point));
    auto quantized = [&](int r) BERT_ALWAYS_INLINE {
      r = r < R ? r : R - 1;
      const F32 scaled = fma(activation(value(r, 0)) * value(r, 1), inverse_scale, zero_point);
      return round_to_i32(min(scaled, set1(kClampBeforeU8)));
    };
#pragma GCC unroll 3
    for (int r = 0; r < R; r += 4) {
      alignas(64) uint8_t bytes[4 * kLanes];
      store_u8_n(bytes, narrow_to_u8(quantized(r), quantized(r + 1), quantized(r + 2), quantized(r + 3)), 4 * kLanes);
      for (int row = r; row < std::min(r + 4, R); ++row) {
        uint8_t* to = y + (position.row + row) * columns + column;
        if (count == kLanes)
          std::memcpy(to, bytes + (row - r) * kLanes, kLanes);
        else
          std::memcpy(to, bytes + (row - r) * kLanes, count);
      }
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
