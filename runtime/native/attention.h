// Shared by quantized_attention.cc (int16) and float_attention.cc (float32): masks, scores and the loop over heads.
//
// Blocking. A job is one head of one sequence. It packs the head's keys and values once, then takes blocks of up to
// MR = kMaxTileRows queries; the scores of one block stay in the cache between the three steps.
//
//                        keys, packed                        values, packed
//                    panels of C = kPanelColumns tokens   panels of C elements of the head
//                    <-------- key_tokens -------->            <- head_size ->
//                    +------+------+------+-------+            +------+------+
//                    |  K0  |  K1  |  K2  |  …    | head_size  |  V0  |  V1  | key_tokens
//                    +------+------+------+-------+            |      |      |
//     queries        scores [MR, key_tokens]                   +------+------+
//    +---------+     +------+------+------+-------+            output [MR, head_size]
//    | Q block |     | tile | tile | tile |       |  softmax   +------+------+
//    +---------+     +------+------+------+-------+  ------->  | tile | tile |
//     head_size       1. Q·Kᵀ, mask, row maximum  2. of rows   +------+------+
//                                                               3. P·V, scale, store
//
// key_tokens ends at the last key that any query attends to, so right padding costs nothing but its queries.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gemm_microkernel.h"
#include "kernels.h"

namespace bert {

constexpr float kLog2E = 1.44269504F;  // softmax is computed with powers of 2: exp(x) = 2^(x · log2 e)

template <class T>
const uint8_t* bytes_of(const T* values) {
  return reinterpret_cast<const uint8_t*>(values);
}

// What the mask [batch, 1, tokens, tokens] leaves of each sequence's keys. A null mask leaves all.
class KeyMask {
 public:
  KeyMask(const uint8_t* mask, size_t batch, size_t tokens) : mask_(mask), tokens_(tokens) {
    if (!mask) return;
    attended_.reset(static_cast<uint8_t*>(allocate_aligned(batch * tokens)));
    summaries_.reset(static_cast<Summary*>(allocate_aligned(batch * sizeof(Summary))));
    for (size_t sequence = 0; sequence < batch; ++sequence)
      summaries_[sequence] = summarize(mask + sequence * tokens * tokens, attended_.get() + sequence * tokens);
  }
  // Number of keys up to the last that any query attends to.
  size_t key_tokens(size_t sequence) const { return mask_ ? summaries_[sequence].key_tokens : tokens_; }
  // Flags [key_tokens] of the keys that any query attends to, or null if every query attends to all of them.
  const uint8_t* attended(size_t sequence) const {
    return is_full(sequence) ? nullptr : attended_.get() + sequence * tokens_;
  }
  // Mask rows from a query on, `tokens` apart, or null if every query attends to all of key_tokens.
  const uint8_t* rows(size_t sequence, size_t query) const {
    return is_full(sequence) ? nullptr : mask_ + (sequence * tokens_ + query) * tokens_;
  }

 private:
  struct Summary {
    size_t key_tokens;
    bool is_full;  // every query attends to all of key_tokens
  };
  // Reduces a mask [tokens, tokens]; sets `attended` [tokens].
  Summary summarize(const uint8_t* mask, uint8_t* attended) const {
    const size_t tokens = tokens_;  // a member would be read again after each write to bytes, which alias everything
    std::copy_n(mask, tokens, attended);
    for (size_t query = 1; query < tokens; ++query)
      for (size_t key = 0; key < tokens; ++key) attended[key] |= mask[query * tokens + key];
    Summary summary = {tokens, true};
    while (summary.key_tokens && !attended[summary.key_tokens - 1]) --summary.key_tokens;
    for (size_t query = 0; query < tokens && summary.is_full; ++query)
      summary.is_full = !std::memchr(mask + query * tokens, 0, summary.key_tokens);
    return summary;
  }
  bool is_full(size_t sequence) const { return !mask_ || summaries_[sequence].is_full; }
  const uint8_t* mask_;
  size_t tokens_;
  AlignedArray<uint8_t> attended_;
  AlignedArray<Summary> summaries_;
};

// What is added to the scores of one head for the distance from query to key, in exponents of 2.
//
//   bias     [2 · tokens - 1]   distance  1 - tokens … -1  0  1 … tokens - 1
//   row(q)   [tokens]                     from key 0 on: distances -q, 1 - q, …
class PositionBias {
 public:
  // Floats that a copy takes: rows may be read to the end of the last panel of keys.
  static size_t size(size_t tokens) { return round_up(2 * tokens + kPanelColumns, kLanes); }
  // Copies a head's bias, or stands for none if it is null. `copy` has size(tokens) floats.
  PositionBias(const float* bias, size_t tokens, float* copy) : zero_distance_(bias ? copy + tokens - 1 : nullptr) {
    if (!bias) return;
    for (size_t i = 0; i < size(tokens); i += kLanes)
      store(copy + i, load_n(bias + i, remaining(2 * tokens - 1, i)) * set1(kLog2E));
  }
  // The bias of a query with each key, or null.
  const float* row(size_t query) const { return zero_distance_ ? zero_distance_ - query : nullptr; }

 private:
  const float* zero_distance_;
};

// Calls f(sequence, column of the head, its first query, working memory) for each head of each sequence, in parallel.
// The head's keys and values follow its queries at `width` and 2 · `width` floats, width = num_heads · head_size.
template <class F>
void parallel_for_heads(const Attention& attention, const ThreadPool& threads, const F& f) {
  const size_t stride = 3 * attention.num_heads * attention.head_size;
  auto job = [&](size_t index) {
    static thread_local Scratch scratch;
    const size_t sequence = index / attention.num_heads, column = index % attention.num_heads * attention.head_size;
    f(sequence, column, attention.qkv + sequence * attention.tokens * stride + column, scratch);
  };
  if (attention.tokens) threads.parallel_for(attention.batch * attention.num_heads, job);
}

// Step 1 for R queries: scores [R, key_tokens], `score_stride` floats apart, and the maximum of each row by lane.
// score(accumulator, row, first key) converts a vector of Q·Kᵀ; keys that the mask leaves out, and the padding of the
// last panel, get -infinity. A panel of keys has `panel_bytes` bytes; `steps` is that of the microkernel; `mask` rows
// are `mask_stride` apart.
template <class Dot, int R, class Score>
inline BERT_ALWAYS_INLINE void compute_scores(const uint8_t* queries, size_t query_stride, const uint8_t* keys,
                                              size_t panel_bytes, size_t steps, size_t key_tokens, const uint8_t* mask,
                                              size_t mask_stride, const Score& score, float* scores,
                                              size_t score_stride, F32 (&row_max)[R]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) row_max[r] = set1(-INFINITY);
  for (size_t first = 0; first < key_tokens; first += kPanelColumns) {
    I32 acc[R][2];
    zero_accumulators(acc);
    gemm_microkernel<Dot, R>(queries, query_stride, keys + first / kPanelColumns * panel_bytes, steps, acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t key = first + kLanes * half;
      const ptrdiff_t count = remaining(key_tokens, key);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const LaneMask attends = mask ? load_mask(mask + r * mask_stride + key, count) : first_lanes(count);
        const F32 masked = select(attends, score(acc[r][half], r, key), set1(-INFINITY));
        store(scores + r * score_stride + key, masked);
        row_max[r] = max(row_max[r], masked);
      }
    }
  }
}

}  // namespace bert
