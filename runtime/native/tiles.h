// AMX: products of tiles, matrices of 16 rows × 64 bytes in 8 registers of their own. A tile of A times a tile of B
// adds to 16 × 16 sums, in the time of 32 vector instructions, which compute an eighth of its products.
//
//                                   B panel, 64 bytes of each column: 16 steps of kStepBytes = 128
//                                   <-- 16 columns --><-- 16 columns -->
//       A: 64 bytes of a row        [      b0        ][      b1        ]   tile row: a step, 4 bytes of each column
//
//   16 rows   [    a0    ]          [      c0        ][      c1        ]
//   16 rows   [    a1    ]          [      c2        ][      c3        ]
//
// The panels of packing.h already are such tiles, if K fills them: kDepthBytes.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "gemm_microkernel.h"
#include "simd.h"

namespace bert {

constexpr size_t kTileBytes = kTileRows * 64;
constexpr size_t kTileSums = 2 * kTileRows * kPanelColumns;  // of two tiles of rows

// Makes the tile registers available to this thread as long as it lives: all of them 16 rows × 64 bytes.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) Config {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    };
    static constexpr Config kConfig = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&kConfig);
  }
  // Lets the system save less when it switches threads.
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// sums [16 · Tiles, kPanelColumns] = rows of A · panel, for one or two tiles of rows: int32, or float32. Their rows are
// `sums_stride` elements apart. A is [Tiles, steps / 16, 16, 64 bytes], `steps` a multiple of 16. For each 64 bytes of
// K, calls meanwhile(k), so that vector instructions run beside the tiles'.
template <class Dot, int Tiles, class Sum, class Meanwhile>
inline BERT_ALWAYS_INLINE void multiply_tiles(const uint8_t* a, const uint8_t* panel, size_t steps, Sum* sums,
                                              size_t sums_stride, const Meanwhile& meanwhile) {
  const size_t stride = sums_stride * sizeof(Sum);
  asm volatile("" ::: "memory");  // the intrinsics of GCC 12 do not say that they read memory
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (Tiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  // Rows of A pass by L1: a GEMM needs its space for the panel, which meets the next rows again.
  for (size_t k = 0; k < steps; k += kTileRows, panel += kTileRows * Dot::kStepBytes) {
    _tile_loadd(6, panel, Dot::kStepBytes);
    _tile_stream_loadd(4, a + 64 * k, 64);
    _tile_loadd(7, panel + Dot::kStepBytes / 2, Dot::kStepBytes);
    Dot::template multiply_tile<0, 4, 6>();
    if constexpr (Tiles == 2) _tile_stream_loadd(5, a + 64 * (steps + k), 64);
    Dot::template multiply_tile<1, 4, 7>();
    if constexpr (Tiles == 2) {
      Dot::template multiply_tile<2, 5, 6>();
      Dot::template multiply_tile<3, 5, 7>();
    }
    meanwhile(k);
  }
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + kPanelColumns / 2, stride);
  if constexpr (Tiles == 2) {
    _tile_stored(2, sums + kTileRows * sums_stride, stride);
    _tile_stored(3, sums + kTileRows * sums_stride + kPanelColumns / 2, stride);
  }
}

}  // namespace bert
