// GEMM whose outputs are not stored but pooled: y [B, N] = max(0, max over a sequence's tokens of A [B, T, K] · B [K,
// N]
// + bias). Of sparse embeddings N is the size of the vocabulary, and the outputs of all tokens would be B · T · N
// floats.
//
//   job:   one weight block: successive panels (packing.h) that stay in L2
//            for each sequence, its tokens from the first to the last that the mask has
//              for each row block of up to kBlockRows tokens, for each panel, for each tile
//                accumulators as in gemm.cc, then the maximum with the panel's part of y
//
// A job owns its columns of y, so that no two threads write to one place. Padding at the ends of a sequence is not
// multiplied at all.
#include <algorithm>
#include <cstring>

#include "packing.h"
#include "widened.h"

namespace bert {

namespace {

// Tokens that are multiplied by a weight block before the next tokens: their part of A stays in L1 and L2.
constexpr size_t kBlockRows = 48;
// Panels of a weight block, at most: few enough that a small model's vocabulary makes jobs for many threads.
constexpr size_t kMaxBlockPanels = 16;

// Where a tile's outputs go, and which of its rows count.
struct PooledTile {
  float* y;           // the sequence's first output of the panel
  ptrdiff_t columns;  // up to N
  const int64_t* mask;
};

template <class Dot>
struct MaxTile {
  template <int R>
  static void run(const uint8_t* a, size_t a_stride, const uint8_t* panel, size_t steps, const float* scales,
                  const float* bias, const PooledTile& tile) {
    I32 acc[R][2];
    zero_accumulators(acc);
    gemm_microkernel<Dot, R>(a, a_stride, panel, steps, acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const F32 scale = load(scales + kLanes * half), offset = load(bias + kLanes * half);
      float* y = tile.y + kLanes * half;
      const ptrdiff_t columns = tile.columns - kLanes * half;
      F32 best = load_n(y, columns);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        if (tile.mask[r]) best = max(best, fma(Dot::sum_to_f32(acc[r][half]), scale, offset));
      store_n(y, best, columns);
    }
  }
};

}  // namespace

template <class Input, class Weight>
void Linear<Input, Weight>::matmul_max(const Input* x, const TokenMask& mask, float* y,
                                       const ThreadPool& threads) const {
  if constexpr (std::is_same_v<Weight, int8_t>)
    if (weight_->is_7_bit) return gemm_max<DotU8S7>(x, mask, y, threads);
  gemm_max<DotOf<Weight>>(x, mask, y, threads);
}

template <class Input, class Weight>
template <class Dot>
void Linear<Input, Weight>::gemm_max(const Input* x, const TokenMask& mask, float* y, const ThreadPool& threads) const {
  const size_t a_stride = a_row_bytes<Dot>(in_features_), steps = a_stride / 4, panel_bytes = steps * Dot::kStepBytes;
  const size_t panels = ceil_div(out_features_, kPanelColumns);
  const size_t block_panels = std::clamp<size_t>(kWeightBlockBytes / panel_bytes, 1, kMaxBlockPanels);
  auto job = [&](size_t index) {
    const size_t first_panel = index * block_panels, end_panel = std::min(first_panel + block_panels, panels);
    const size_t first_column = first_panel * kPanelColumns;
    const size_t end_column = std::min(end_panel * kPanelColumns, out_features_);
    for (size_t sequence = 0; sequence < mask.batch; ++sequence) {
      float* pooled = y + sequence * out_features_;
      // Zeros byte by byte: unlike a store of floats, it may write to any address.
      std::memset(pooled + first_column, 0, (end_column - first_column) * sizeof(float));
      const int64_t* tokens = mask.values + sequence * mask.tokens;
      size_t first = 0, end = mask.tokens;
      while (first < end && !tokens[first]) ++first;
      while (end > first && !tokens[end - 1]) --end;
      const size_t row_blocks = ceil_div(end - first, kBlockRows);
      for (size_t block = 0; block < row_blocks; ++block) {
        const size_t row = first + block * (end - first) / row_blocks;
        const size_t rows = first + (block + 1) * (end - first) / row_blocks - row;
        const uint8_t* a = microkernel_rows<Dot>(x + (sequence * mask.tokens + row) * in_features_, rows, in_features_);
        for (size_t panel = first_panel; panel < end_panel; ++panel) {
          const size_t column = panel * kPanelColumns;
          const auto* b = reinterpret_cast<const uint8_t*>(weight_->panels.get()) + panel * panel_bytes;
          for_each_row_block(rows, [&](size_t tile, size_t count) {
            const PooledTile target = {pooled + column, remaining(out_features_, column), tokens + row + tile};
            kernel_by_rows<MaxTile<Dot>>(count)(a + tile * a_stride, a_stride, b, steps, scales_.get() + column,
                                                bias_.get() + column, target);
          });
        }
      }
    }
  };
  if (mask.batch) threads.parallel_for(ceil_div(panels, block_panels), job);
}

template void Linear<uint8_t, int8_t>::matmul_max(const uint8_t*, const TokenMask&, float*, const ThreadPool&) const;
template void Linear<float, float>::matmul_max(const float*, const TokenMask&, float*, const ThreadPool&) const;
#ifdef BERT_BF16
template void Linear<float, BFloat16>::matmul_max(const float*, const TokenMask&, float*, const ThreadPool&) const;
#endif

}  // namespace bert
