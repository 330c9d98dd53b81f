// GEMM whose outputs are not stored but pooled: y [B, N] = max(0, max of A [B, T, K] · B [K, N] + bias over a
// sequence's tokens). Of sparse embeddings N is the size of the vocabulary, and the outputs of all tokens would be
// B · T · N floats. The maximum leaves NaN out: a token of NaN hides no other token.
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

#include "gemm_block.h"
#include "packing.h"
#include "widened.h"

namespace bert {

namespace {

// Tokens that are multiplied by a weight block before the next tokens: their part of A stays in L1 and L2.
constexpr size_t kBlockRows = 48;
// Panels of a weight block, at most: few enough that a small model's vocabulary makes jobs for many threads.
constexpr size_t kMaxBlockPanels = 16;

// Epilogue: the maximum of y [N], the outputs of a sequence, and of those rows that the mask [rows of the block] has.
struct PoolMax {
  float* y;
  const int64_t* mask;

  template <int R>
  void prefetch(const TilePosition&) const {}

  template <int R, class Value>
  void store_tile(const TilePosition& position, const Value& value) const {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* columns = y + position.column + kLanes * half;
      const ptrdiff_t count = position.remaining_columns - kLanes * half;
      F32 best = load_n(columns, count);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        if (mask[position.row + r]) best = max(value(r, half), best);  // the second one where one is NaN
      store_n(columns, best, count);
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
        const uint8_t* a =
            microkernel_rows<Dot>(x + (mask.first_row(sequence) + row) * in_features_, rows, in_features_);
        const auto* b = reinterpret_cast<const uint8_t*>(weight_->panels.get());
        const GemmBlock multiplied = {
            a, a_stride, 0, rows, b, steps, first_panel, end_panel, out_features_, scales_.get(), bias_.get()};
        multiply_block<Dot>(multiplied, PoolMax{pooled, tokens + row});
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
