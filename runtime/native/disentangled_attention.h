// Position scores of disentangled attention (DeBERTa, arXiv:2006.03654), which both attention kernels add like a bias:
//
//   bias(query, key) = query · position_keys(query - key) + key · position_queries(query - key)
//
// Packed tables have a column for each distance, M = max_tokens of them on either side. A row of A at token t meets the
// token x of the other side in column M - 1 - t + x, so that its products are contiguous in x:
//
//   column             0    1  …  M-1  …  2M-1
//   position_keys     M-1  M-2 …   0  …   -M      distance, for queries as rows of A
//   position_queries  1-M  2-M …   0  …    M      distance, for keys as rows of A
//
//   products of rows t … t + R - 1, stored with row r moved by r to the right:
//
//     columns from M - t - R   [ panel ][ panel ]            y[0]      . . x0 x1 x2 …
//                                                  ---->     y[1]    . . x0 x1 x2 …
//
// What lies outside of x = 0 … count - 1 is written, too: rows of y have kPositionMargin floats on either side.
#pragma once
#include <algorithm>

#include "attention.h"
#include "gemm_microkernel.h"
#include "kernels.h"

namespace bert {

constexpr size_t kPositionMargin = round_up(kPanelColumns + kMaxTileRows, kLanes);

// Position scores of one head of one sequence: those of all keys, and the bias of a block of queries.
class PositionScores {
 public:
  // Floats of working memory.
  static size_t size(size_t tokens) { return stride(tokens) * (round_up(tokens, kLanes) + kMaxTileRows); }
  // Stands for none if `memory`, of size(tokens) floats, is null.
  PositionScores(size_t tokens, size_t max_tokens, float* memory)
      : tokens_(tokens), max_tokens_(max_tokens), stride_(stride(tokens)), by_key_(memory) {}
  explicit operator bool() const { return by_key_ != nullptr; }

  // Multiplies the keys `first` … `first` + R - 1, rows of A, with the position queries.
  template <class Dot, int R>
  inline BERT_ALWAYS_INLINE void multiply_keys(const uint8_t* keys, size_t key_bytes, size_t steps, const void* panels,
                                               size_t panel_bytes, size_t first, F32 scale) {
    F32 scales[R];
    std::fill_n(scales, R, scale);
    multiply<Dot, R>(keys, key_bytes, steps, panels, panel_bytes, first, tokens_, scales, row_of(by_key_, first));
  }
  // Sets the bias of the queries `first` … `first` + R - 1, rows of A.
  template <class Dot, int R>
  inline BERT_ALWAYS_INLINE void multiply_queries(const uint8_t* queries, size_t query_bytes, size_t steps,
                                                  const void* panels, size_t panel_bytes, size_t first,
                                                  size_t key_tokens, const F32 (&scales)[R]) {
    float* y = bias();
    multiply<Dot, R>(queries, query_bytes, steps, panels, panel_bytes, first, key_tokens, scales, y);
    for (size_t key = 0; key < key_tokens; key += kLanes) {
      for (int row = 0; row < R; row += kLanes) {
        I32 columns[kLanes];  // of keys as rows; those behind the last are masked
        for (int lane = 0; lane < kLanes; ++lane)
          columns[lane] = bit_cast_i32(load_unaligned(row_of(by_key_, key + lane) + first + row));
        transpose_4_bytes(columns);
        for (int r = row; r < std::min(R, row + kLanes); ++r) {
          float* sums = y + r * stride_ + key;
          store_unaligned(sums, load_unaligned(sums) + bit_cast_f32(columns[r - row]));
        }
      }
    }
  }
  // The bias of the first query of the block; the next are bias_step() floats apart.
  float* bias() const { return row_of(by_key_, round_up(tokens_, kLanes)); }
  ptrdiff_t bias_step() const { return static_cast<ptrdiff_t>(stride_); }

 private:
  static size_t stride(size_t tokens) { return round_up(tokens, kLanes) + 2 * kPositionMargin; }
  float* row_of(float* memory, size_t row) const { return memory + row * stride_ + kPositionMargin; }
  template <class Dot, int R>
  inline BERT_ALWAYS_INLINE void multiply(const uint8_t* a, size_t a_bytes, size_t steps, const void* panels,
                                          size_t panel_bytes, size_t first, size_t count, const F32 (&scales)[R],
                                          float* y) const {
    if (!count) return;  // no query attends to any key
    const size_t begin = max_tokens_ - first - R, last = max_tokens_ - 2 - first + count;
    for (size_t panel = begin / kPanelColumns; panel <= last / kPanelColumns; ++panel) {
      I32 acc[R][2];
      zero_accumulators(acc);
      gemm_microkernel<Dot, R>(a, a_bytes, static_cast<const uint8_t*>(panels) + panel * panel_bytes, steps, acc);
      float* moved =
          y + (static_cast<ptrdiff_t>(panel * kPanelColumns + first) - static_cast<ptrdiff_t>(max_tokens_ - 1));
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          store_unaligned(moved + r * (bias_step() + 1) + kLanes * half, Dot::sum_to_f32(acc[r][half]) * scales[r]);
    }
  }
  size_t tokens_, max_tokens_, stride_;
  float* by_key_;  // [tokens rounded up to kLanes, stride], then the bias [kMaxTileRows, stride]
};

}  // namespace bert
