// Shared by the files of attention (int16, float32, and tiles) and keep_tokens.cc: masks, scores and the
// loop over heads.
//
// Blocking. A job is one head of one sequence. It packs the head's keys and values once, then takes blocks of up to
// MR = kMaxTileRows queries (16 on tiles); the scores of one block stay in the cache between the three steps. Few heads
// of a long text are packed first, and a job is then a part of a head's queries: see compute_heads.
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
// key_tokens ends at the last key that any query attends to, so right padding costs nothing but its queries. With a
// window, a block of queries reads the panels of keys that the window reaches.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "gemm_microkernel.h"
#include "kernels.h"

namespace bert {

// Queries of a block, at most: the microkernel's rows, or those of a tile.
constexpr size_t kMaxBlockQueries = kHasAmx ? kTileRows : kMaxTileRows;
constexpr float kLog2E = 1.44269504F;  // softmax is computed with powers of 2: exp(x) = 2^(x · log2 e)

template <class T>
const uint8_t* bytes_of(const T* values) {
  return reinterpret_cast<const uint8_t*>(values);
}

// What the mask [batch, 1, rows, tokens] leaves of each sequence's keys. A null mask leaves all.
class KeyMask {
 public:
  KeyMask(const uint8_t* mask, size_t batch, size_t rows, size_t tokens) : mask_(mask), rows_(rows), tokens_(tokens) {
    if (!mask) return;
    if (rows > 1) attended_.reset(static_cast<uint8_t*>(allocate_aligned(batch * tokens)));
    summaries_.reset(static_cast<Summary*>(allocate_aligned(batch * sizeof(Summary))));
    for (size_t sequence = 0; sequence < batch; ++sequence) summaries_[sequence] = summarize(sequence);
  }
  // Number of keys up to the last that any query attends to.
  size_t key_tokens(size_t sequence) const { return mask_ ? summaries_[sequence].key_tokens : tokens_; }
  // Flags [key_tokens] of the keys that any query attends to, or null if every query attends to all of them.
  const uint8_t* attended(size_t sequence) const {
    return is_full(sequence) ? nullptr : (rows_ > 1 ? attended_.get() : mask_) + sequence * tokens_;
  }
  // Mask rows from a query on, `stride` apart, or null if every query attends to all of key_tokens.
  const uint8_t* rows(size_t sequence, size_t query) const {
    return is_full(sequence) ? nullptr : mask_ + sequence * rows_ * tokens_ + query * stride();
  }
  size_t stride() const { return rows_ == 1 ? 0 : tokens_; }

 private:
  struct Summary {
    size_t key_tokens;
    bool is_full;  // every query attends to all of key_tokens
  };
  // Reduces the mask [rows, tokens] of a sequence, and sets its flags in `attended_`; one row is these flags itself.
  Summary summarize(size_t sequence) const {
    const size_t rows = rows_,
                 tokens = tokens_;  // a member would be read again after each write to bytes, which alias everything
    const uint8_t *mask = mask_ + sequence * rows * tokens, *attended = mask;
    if (rows > 1) {
      uint8_t* any = attended_.get() + sequence * tokens;
      std::copy_n(mask, tokens, any);
      for (size_t query = 1; query < rows; ++query)
        for (size_t key = 0; key < tokens; ++key) any[key] |= mask[query * tokens + key];
      attended = any;
    }
    Summary summary = {tokens, true};
    while (summary.key_tokens && !attended[summary.key_tokens - 1]) --summary.key_tokens;
    for (size_t query = 0; query < rows && summary.is_full; ++query)
      summary.is_full = !std::memchr(mask + query * tokens, 0, summary.key_tokens);
    return summary;
  }
  bool is_full(size_t sequence) const { return !mask_ || summaries_[sequence].is_full; }
  const uint8_t* mask_;
  size_t rows_, tokens_;
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

// Rotates queries and keys by their positions.
class Rotation {
 public:
  // `memory` has size(…) floats.
  Rotation(RotaryTable table, size_t head_size, float* memory)
      : table_(table), head_size_(head_size), stride_(round_up(head_size, kLanes)), memory_(memory) {}
  // Floats of memory for the keys and one block of queries.
  static size_t size(RotaryTable table, size_t key_tokens, size_t head_size) {
    return table.cos ? (key_tokens + kMaxBlockQueries) * round_up(head_size, kLanes) : 0;
  }
  // Returns rows [count, head_size] of positions from `first` on, and sets their `stride`: as they are, or rotated.
  // Keys stay valid while queries are rotated.
  const float* keys(const float* rows, size_t count, size_t& stride) const {
    return rotate(rows, 0, count, stride, memory_ + kMaxBlockQueries * stride_);
  }
  const float* queries(const float* rows, size_t first, size_t count, size_t& stride) const {
    return rotate(rows, first, count, stride, memory_);
  }

 private:
  const float* rotate(const float* rows, size_t first, size_t count, size_t& stride, float* rotated) const {
    if (!table_.cos) return rows;
    const size_t half = head_size_ / 2;
    for (size_t row = 0; row < count; ++row) {
      const float *a = rows + row * stride, *b = a + half;
      const float *cos = table_.cos + (first + row) * half, *sin = table_.sin + (first + row) * half;
      float *to_a = rotated + row * stride_, *to_b = to_a + half;
      for (size_t i = 0; i < half; i += kLanes) {
        const ptrdiff_t left = remaining(half, i);
        const F32 x = load_n(a + i, left), y = load_n(b + i, left), c = load_n(cos + i, left),
                  s = load_n(sin + i, left);
        store_n(to_a + i, x * c - y * s, left);
        store_n(to_b + i, fma(y, c, x * s), left);
      }
    }
    stride = stride_;
    return rotated;
  }
  RotaryTable table_;
  size_t head_size_, stride_;
  float* memory_;
};

// The keys that a block of queries reads: all, or those of a window. `first` is the start of a panel.
struct KeyRange {
  size_t first, count;
};

// Attention to the keys within `window` tokens of each query; a window of 0 is none.
class Window {
 public:
  Window(size_t window, size_t tokens) : window_(window < tokens ? window : 0) {}
  explicit operator bool() const { return window_; }
  // Bytes of memory for the mask of one block.
  size_t size() const { return window_ ? kMaxBlockQueries * stride() : 0; }
  size_t stride() const { return round_up(2 * window_ + kMaxBlockQueries, kPanelColumns) + kPanelColumns; }
  KeyRange range(size_t first_query, size_t queries, size_t key_tokens) const {
    if (!window_) return {0, key_tokens};
    const size_t first = first_query > window_ ? (first_query - window_) / kPanelColumns * kPanelColumns : 0;
    const size_t end = std::min(key_tokens, first_query + queries + window_);
    return {first, end > first ? end - first : 0};
  }
  // Writes the mask [queries, range.count] of a block, rows stride() apart. `attended` are flags of all keys, or null.
  void fill_mask(size_t first_query, size_t queries, KeyRange range, const uint8_t* attended, uint8_t* mask) const {
    for (size_t query = first_query; query < first_query + queries; ++query, mask += stride()) {
      const size_t first = std::max(range.first, query > window_ ? query - window_ : 0);
      const size_t end = std::min(range.first + range.count, query + window_ + 1);
      std::fill_n(mask, range.count, uint8_t{0});
      if (first >= end) continue;
      if (attended)
        std::copy(attended + first, attended + end, mask + (first - range.first));
      else
        std::fill_n(mask + (first - range.first), end - first, uint8_t{1});
    }
  }

 private:
  size_t window_;
};

// Mask rows of a block of queries for the keys of its range.
struct BlockMask {
  const uint8_t* rows;  // null if every query attends to all of them
  size_t stride;
  // `memory` has window.size() bytes.
  BlockMask(const KeyMask& mask, const Window& window, size_t sequence, size_t first, size_t count, KeyRange range,
            uint8_t* memory)
      : rows(window ? memory : mask.rows(sequence, first)), stride(window ? window.stride() : mask.stride()) {
    if (window) window.fill_mask(first, count, range, mask.attended(sequence), memory);
  }
};

// A head of a sequence. Its keys and values follow its queries at `width` and 2 · `width` floats, width = num_heads ·
// head_size.
struct HeadPosition {
  size_t sequence, column;
  size_t first_row, row_count;
  const float* queries;  // of all rows
  HeadPosition(const Attention& attention, size_t index)
      : sequence(index / attention.num_heads),
        column(index % attention.num_heads * attention.head_size),
        first_row(attention.first_row(sequence)),
        row_count(attention.row_count(sequence)),
        queries(attention.qkv + 3 * first_row * attention.num_heads * attention.head_size + column) {}
};

// Up to kMaxSplitHeads heads of at least kMinSplitTokens tokens are computed in parts of kPartQueries queries, unless
// they divide evenly among the processor's threads: 12 heads are 1.5 rounds of 8 threads, of which the second leaves
// half of them idle. Where they do divide, parts cost 1 % of a text of 384 tokens (MiniLM in INT8, 2 threads).
constexpr size_t kMaxSplitHeads = 32, kMinSplitTokens = 256, kPartQueries = 8 * kMaxTileRows;

// Computes all heads in parallel: pack(head, position), then attend(head, position, first query, end) for all queries.
// make(position, working memory, panels) returns a head whose packed keys and values have `panel_bytes` bytes at
// `panels`, or are part of the working memory if that is null.
template <class Make, class Pack, class Attend>
void compute_heads(const Attention& attention, bool may_split, size_t panel_bytes, const ThreadPool& threads,
                   const Make& make, const Pack& pack, const Attend& attend) {
  static thread_local Scratch all_panels;
  static const size_t processor_threads = std::max(1U, std::thread::hardware_concurrency());
  const size_t heads = attention.batch * attention.num_heads, tokens = attention.tokens;
  const bool is_split = may_split && heads <= kMaxSplitHeads && tokens >= kMinSplitTokens && heads % processor_threads;
  const size_t parts = is_split ? ceil_div(tokens, kPartQueries) : 1;
  uint8_t* const panels = is_split ? all_panels.reserve(heads * panel_bytes) : nullptr;
  auto run = [&](size_t index, size_t first, size_t end, bool packs) {
    static thread_local Scratch scratch;
    const HeadPosition position(attention, index);
    auto head = make(position, scratch, is_split ? panels + index * panel_bytes : nullptr);
    if (packs) pack(head, position);
    end = std::min(end, position.row_count);
    if (first < end) attend(head, position, first, end);
  };
  auto whole = [&](size_t index) { run(index, 0, is_split ? 0 : tokens, true); };
  auto part = [&](size_t index) {
    const size_t first = index % parts * kPartQueries;
    run(index / parts, first, first + kPartQueries, false);
  };
  if (!tokens) return;
  threads.parallel_for(heads, whole);
  if (is_split) threads.parallel_for(heads * parts, part);
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
