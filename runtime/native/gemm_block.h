// A block of the matmuls of gemm.cc and gemm_max.cc: rows of A times panels of B, each tile of outputs to an epilogue.
//
//   for each panel
//     for each tile of up to MR = kMaxTileRows rows
//       accumulators [MR, NR] = A rows · panel, over all of K, in registers (gemm_microkernel.h), while the next
//         panel is prefetched into L2
//       epilogue (epilogue.h): scales, bias, activation, quantization, store
//
// With AMX (tiles.h):
//
//   for each panel
//     for each 32 rows
//       sums [32, NR] = A rows · panel, over all of K, in tiles, and meanwhile
//         the epilogue of the sums before, 4 rows at a time, and prefetches of the next panel
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gemm_microkernel.h"
#ifdef BERT_AMX
#include "tiles.h"
#endif

namespace bert {

// Where a tile of R × kPanelColumns lies in C [M, N].
struct TilePosition {
  size_t row, column;           // of the first element
  ptrdiff_t remaining_columns;  // up to N
};

// Rows of A, as the microkernel reads them, and panels of B.
struct GemmBlock {
  const uint8_t* a;
  size_t a_stride, first_row, rows;  // bytes; the row of C that belongs to `a`; at least 1
  const uint8_t* panels;             // of all of B
  size_t steps, first_panel, end_panel, out_features;
  const float *scales, *bias;  // of all columns
};

template <class Dot, class Epilogue, int PrefetchBytes>
struct RegisterTile {
  template <int R>
  static void run(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps, const uint8_t* prefetch,
                  const float* scales, const float* bias, const TilePosition& position, const Epilogue& epilogue) {
    epilogue.template prefetch<R>(position);
    I32 acc[R][2];
    zero_accumulators(acc);
    gemm_microkernel<Dot, R, PrefetchBytes>(a, a_stride, panel, steps, acc, prefetch);
    const F32 scale[2] = {load(scales), load(scales + kLanes)}, offset[2] = {load(bias), load(bias + kLanes)};
    epilogue.template store_tile<R>(position, [&](int r, int half) BERT_ALWAYS_INLINE {
      return fma(Dot::sum_to_f32(acc[r][half]), scale[half], offset[half]);
    });
  }
};

// Returns the tile function for a number of rows. Each tile prefetches one half of the next panel, or all of it if it
// is the only tile of its row block.
template <class Dot, class Epilogue>
auto tile_by_rows(size_t rows, bool is_only_tile) {
  return is_only_tile ? kernel_by_rows<RegisterTile<Dot, Epilogue, Dot::kStepBytes>>(rows)
                      : kernel_by_rows<RegisterTile<Dot, Epilogue, Dot::kStepBytes / 2>>(rows);
}

template <class Dot, class Epilogue>
void multiply_in_registers(const GemmBlock& block, const Epilogue& epilogue) {
  const size_t tiles = ceil_div(block.rows, kMaxTileRows), panel_bytes = block.steps * Dot::kStepBytes;
  for (size_t panel = block.first_panel; panel < block.end_panel; ++panel) {
    const size_t column = panel * kPanelColumns;
    const uint8_t* b = block.panels + panel * panel_bytes;
    for (size_t tile = 0; tile < tiles; ++tile) {
      const size_t row = tile * block.rows / tiles, next = (tile + 1) * block.rows / tiles;
      const uint8_t* prefetch = b + panel_bytes + tile % 2 * (panel_bytes / 2);
      const TilePosition position = {block.first_row + row, column, remaining(block.out_features, column)};
      const auto compute_tile = tile_by_rows<Dot, Epilogue>(next - row, tiles == 1);
      compute_tile(block.a + row * block.a_stride, block.a_stride, b, block.steps, prefetch, block.scales + column,
                   block.bias + column, position, epilogue);
    }
  }
}

#ifdef BERT_AMX

// The epilogue of sums in memory, a few rows at a time.
template <class Dot, class Epilogue>
class PendingEpilogue {
 public:
  static constexpr size_t kRows = 4;  // of a call of `advance`; of the last calls, one

  explicit PendingEpilogue(const Epilogue& epilogue) : epilogue_(epilogue) {}
  // Starts with rows of sums that are kPanelColumns apart, for the outputs from `position` on.
  void start(const int32_t* sums, size_t rows, const TilePosition& position, const float* scales, const float* bias) {
    sums_ = sums;
    rows_ = rows;
    position_ = position;
    scales_ = scales;
    bias_ = bias;
  }
  bool is_done() const { return !rows_; }
  void advance() {
    if (rows_ < kRows)
      store<1>();
    else
      store<kRows>();
  }

 private:
  template <int R>
  inline BERT_ALWAYS_INLINE void store() {
    const F32 scale[2] = {load(scales_), load(scales_ + kLanes)}, offset[2] = {load(bias_), load(bias_ + kLanes)};
    epilogue_.template store_tile<R>(position_, [&](int r, int half) BERT_ALWAYS_INLINE {
      return fma(Dot::sum_to_f32(load_i32(sums_ + r * kPanelColumns + half * kLanes)), scale[half], offset[half]);
    });
    rows_ -= R;
    position_.row += R;
    sums_ += R * kPanelColumns;
  }
  const Epilogue& epilogue_;
  const int32_t* sums_ = nullptr;
  size_t rows_ = 0;  // left
  TilePosition position_ = {};
  const float *scales_ = nullptr, *bias_ = nullptr;
};

template <class Dot, class Epilogue>
void multiply_in_tiles(const GemmBlock& block, const Epilogue& epilogue) {
  constexpr size_t kPairRows = 2 * kTileRows;
  const size_t pairs = ceil_div(block.rows, kPairRows), depths = block.steps / kTileRows;
  const size_t panel_bytes = block.steps * Dot::kStepBytes;
  // Cache lines of the next panel that are prefetched for each 64 bytes of K.
  const size_t prefetched = ceil_div(kTileRows * Dot::kStepBytes / 64, pairs);
  const TileRegisters registers;
  alignas(64) int32_t sums[2][kTileSums];
  PendingEpilogue<Dot, Epilogue> pending(epilogue);
  size_t index = 0;
  for (size_t panel = block.first_panel; panel < block.end_panel; ++panel) {
    const size_t column = panel * kPanelColumns;
    const uint8_t *b = block.panels + panel * panel_bytes, *prefetch = b + panel_bytes;
    for (size_t pair = 0; pair < pairs; ++pair, ++index) {
      const size_t row = pair * kPairRows, rows = std::min(kPairRows, block.rows - row);
      const uint8_t* a = block.a + row * block.a_stride;
      int32_t* const to = sums[index % 2];
      size_t done = 0;  // calls of pending.advance
      const auto meanwhile = [&](size_t k) BERT_ALWAYS_INLINE {
        for (size_t line = 0; line < prefetched; ++line, prefetch += 64) __builtin_prefetch(prefetch, 0, 2);
        for (const size_t end = (k / kTileRows + 1) * kPairRows / pending.kRows; done * depths < end; ++done)
          if (!pending.is_done()) pending.advance();
      };
      if (rows > kTileRows)
        multiply_tiles<Dot, 2>(a, b, block.steps, to, kPanelColumns, meanwhile);
      else
        multiply_tiles<Dot, 1>(a, b, block.steps, to, kPanelColumns, meanwhile);
      // The last rows, if they are no four.
      while (!pending.is_done()) pending.advance();
      pending.start(to, rows, {block.first_row + row, column, remaining(block.out_features, column)},
                    block.scales + column, block.bias + column);
    }
  }
  while (!pending.is_done()) pending.advance();
}

#endif

// Multiplies a block, and gives each tile of outputs to the epilogue.
template <class Dot, class Epilogue>
void multiply_block(const GemmBlock& block, const Epilogue& epilogue) {
#ifdef BERT_AMX
  if constexpr (kHasTiles<Dot>)
    multiply_in_tiles<Dot>(block, epilogue);
  else
#endif
    multiply_in_registers<Dot>(block, epilogue);
}

}  // namespace bert
