// Attention by AMX tiles: y = softmax(Q·Kᵀ · scale + bias + mask) · V for each head, with queries, keys, values and
// probabilities rounded to bfloat16. Blocking: see attention.h, with blocks of 32 queries.
//
// Packed, C = kPanelColumns = 32: keys and values as in float_attention.cc, with tokens padded to whole panels; queries
// and probabilities as tiles of A (tiles.h):
//
//   queries  [2, padded size / 32, 16, 32]      probabilities  [2, padded keys / 32, 16, 32]
//
// bfloat16 has the exponents of float32, so that probabilities need no scale: 2^(score - maximum) is rounded as it is,
// and the outputs are divided by its sum.
#ifdef BERT_AMX
#include "tile_attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "attention.h"
#include "attention_packing.h"
#include "exp2.h"
#include "tiles.h"

namespace bert {

namespace {

constexpr size_t kTileElements = 32;  // bfloat16 of a tile's row

// Packed keys and values of one head of one sequence, and working memory for a block of queries.
struct Head {
  size_t key_tokens, head_size;
  size_t padded_tokens, padded_size;  // to whole panels
  BFloat16 *keys, *values, *queries, *probabilities;
  float *scores, *bias;  // scores [kMaxBlockQueries, padded_tokens]; bias: of PositionBias
  float* rotated;        // memory of a Rotation
  uint8_t* window_mask;  // memory of a Window
  KeyRange range;        // of the block of queries

  // Bytes of packed keys and values.
  static size_t panel_bytes(size_t key_tokens, size_t head_size) {
    return 2 * sizeof(BFloat16) * round_up(key_tokens, kPanelColumns) * round_up(head_size, kPanelColumns);
  }

  // The panels are memory of panel_bytes, or part of the working memory if `panels` is null.
  Head(size_t key_tokens, size_t head_size, size_t bias_size, size_t rotation_size, size_t window_size,
       Scratch& scratch, uint8_t* panels)
      : key_tokens(key_tokens),
        head_size(head_size),
        padded_tokens(round_up(key_tokens, kPanelColumns)),
        padded_size(round_up(head_size, kPanelColumns)) {
    const size_t sizes[] = {panels ? 0 : panel_bytes(key_tokens, head_size),
                            kMaxBlockQueries * padded_size * sizeof(BFloat16),
                            kMaxBlockQueries * padded_tokens * sizeof(BFloat16),
                            kMaxBlockQueries * padded_tokens * sizeof(float),
                            bias_size * sizeof(float),
                            rotation_size * sizeof(float),
                            window_size};  // bytes
    size_t total = 0;
    for (size_t size : sizes) total += round_up(size, 64);
    uint8_t* memory = scratch.reserve(total);
    auto take = [&memory](size_t size) { return std::exchange(memory, memory + round_up(size, 64)); };
    uint8_t* const own_panels = take(sizes[0]);
    keys = reinterpret_cast<BFloat16*>(panels ? panels : own_panels);
    values = keys + padded_tokens * padded_size;
    queries = reinterpret_cast<BFloat16*>(take(sizes[1]));
    probabilities = reinterpret_cast<BFloat16*>(take(sizes[2]));
    scores = reinterpret_cast<float*>(take(sizes[3]));
    bias = reinterpret_cast<float*>(take(sizes[4]));
    rotated = reinterpret_cast<float*>(take(sizes[5]));
    window_mask = take(sizes[6]);
  }

  size_t padded_keys() const { return round_up(range.count, kPanelColumns); }

  // Packs keys [key_tokens, head_size].
  void pack_keys(const float* source, size_t stride) {
    pack_rows([&](size_t token) { return source + token * stride; }, key_tokens, padded_tokens, head_size, keys);
  }

  // Rounds queries [count, head_size] · factor to tiles.
  void pack_queries(const float* rows, size_t stride, size_t count, float factor) const {
    for (size_t row = 0; row < count; ++row) {
      BFloat16* to = queries + row / kTileRows * kTileRows * padded_size + row % kTileRows * kTileElements;
      for (size_t i = 0; i < padded_size; i += kTileElements, to += kTileRows * kTileElements) {
        const F32 low = load_n(rows + row * stride + i, remaining(head_size, i)) * set1(factor);
        const F32 high = load_n(rows + row * stride + i + kLanes, remaining(head_size, i + kLanes)) * set1(factor);
        store_i32(to, narrow_to_bf16(low, high));
      }
    }
  }
};

void nothing(size_t) {}

// sums [rows, kPanelColumns] = A · panel of bfloat16, for rows up to 32. All 16 or 32 rows are written.
void multiply(size_t rows, const BFloat16* a, const BFloat16* panel, size_t depth, float* sums, size_t stride) {
  if (rows > kTileRows)
    multiply_tiles<DotBF16, 2>(bytes_of(a), bytes_of(panel), depth / kBf16Group, sums, stride, nothing);
  else
    multiply_tiles<DotBF16, 1>(bytes_of(a), bytes_of(panel), depth / kBf16Group, sums, stride, nothing);
}

// Mask of a block of queries, and their bias from the first key of the range on; each may be null.
struct ScoreTerms {
  const uint8_t* mask;
  size_t mask_stride;
  const float* bias;  // of the first query; that of the next starts a float earlier
};

// Turns R rows of scores from `first` on, exponents of 2, into probabilities of which the largest is 1, and returns
// 1 / sum of each row. Keys that the mask leaves out, and the padding of the last panel, get 0. A NaN of a key becomes
// that of its queries.
template <int R>
inline BERT_ALWAYS_INLINE void softmax(const Head& head, size_t first, const ScoreTerms& terms, float* inverse_sums) {
  const size_t padded_keys = head.padded_keys(), count = head.range.count;
  float* const scores = head.scores + first * head.padded_tokens;
  F32 best[R];
  for (int r = 0; r < R; ++r) best[r] = set1(-INFINITY);
  const bool is_plain = !terms.mask && !terms.bias;
  for (size_t key = 0; key < padded_keys; key += kLanes) {
    const ptrdiff_t left = remaining(count, key);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const at = scores + r * head.padded_tokens + key;
      F32 score = load(at);
      if (!is_plain || left < kLanes) {
        if (terms.bias) score += load_unaligned(terms.bias - (first + r) + key);
        const LaneMask attends =
            terms.mask ? load_mask(terms.mask + (first + r) * terms.mask_stride + key, left) : first_lanes(left);
        score = select(attends, score, set1(-INFINITY));
        store(at, score);
      }
      best[r] = max(best[r], score);
    }
  }
  float maxima[R];
  F32 sums[R];
  for (int r = 0; r < R; ++r) {
    maxima[r] = reduce_max(best[r]);
    sums[r] = set1(0.0F);
  }
  const auto power = [](F32 score, float maximum) BERT_ALWAYS_INLINE {
    return zero_where_equal(exp2(score - set1(maximum)), score, set1(-INFINITY));
  };
  BFloat16* const tile =
      head.probabilities + first / kTileRows * kTileRows * padded_keys + first % kTileRows * kTileElements;
  for (size_t key = 0; key < padded_keys; key += kTileElements)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float* const at = scores + r * head.padded_tokens + key;
      const F32 low = power(load(at), maxima[r]), high = power(load(at + kLanes), maxima[r]);
      sums[r] += low + high;
      store_i32(tile + key * kTileRows + r * kTileElements, narrow_to_bf16(low, high));
    }
  // A query without any key gets zeros, as in ONNX Runtime's Attention.
  for (int r = 0; r < R; ++r) inverse_sums[r] = maxima[r] == -INFINITY ? 0 : 1 / reduce_sum(sums[r]);
}

// Calls f(first row, integral constant of the row count) for blocks of at most 4 rows.
template <class F>
void for_each_four_rows(size_t rows, const F& f) {
  size_t first = 0;
  for (; first + 4 <= rows; first += 4) f(first, std::integral_constant<int, 4>{});
  for (; first < rows; ++first) f(first, std::integral_constant<int, 1>{});
}

// Attention of a block of queries whose tiles are packed; rows of y are `stride` floats apart.
void attend_block(const Head& head, size_t queries, const ScoreTerms& terms, float* y, size_t stride) {
  for (size_t key = 0; key < head.padded_keys(); key += kPanelColumns)
    multiply(queries, head.queries, head.keys + (head.range.first + key) * head.padded_size, head.padded_size,
             head.scores + key, head.padded_tokens);
  float factors[kMaxBlockQueries];
  for_each_four_rows(queries,
                     [&](size_t first, auto rows) { softmax<rows.value>(head, first, terms, factors + first); });
  alignas(64) float sums[kTileSums];
  for (size_t column = 0; column < head.head_size; column += kPanelColumns) {
    const BFloat16* values = head.values + column * head.padded_tokens + head.range.first * kPanelColumns;
    multiply(queries, head.probabilities, values, head.padded_keys(), sums, kPanelColumns);
    for (size_t row = 0; row < queries; ++row)
      for (size_t i = 0; i < kPanelColumns; i += kLanes)
        store_n(y + row * stride + column + i, load(sums + row * kPanelColumns + i) * set1(factors[row]),
                remaining(head.head_size, column + i));
  }
}

}  // namespace

void compute_in_tiles(const Attention& attention, float* y, const ThreadPool& threads) {
  const size_t tokens = attention.tokens, head_size = attention.head_size;
  const size_t width = attention.num_heads * head_size, stride = 3 * width;
  const size_t bias_size = attention.bias ? PositionBias::size(tokens) : 0;
  const KeyMask key_mask(attention.mask, attention.batch, attention.mask_rows, tokens);
  const Window local(attention.window, tokens);
  auto make = [&](const HeadPosition& at, Scratch& scratch, uint8_t* panels) {
    const size_t key_tokens = key_mask.key_tokens(at.sequence);
    return Head(key_tokens, head_size, bias_size, Rotation::size(attention.rotary, key_tokens, head_size), local.size(),
                scratch, panels);
  };
  auto pack = [&](Head& head, const HeadPosition& at) {
    size_t key_stride = stride;
    const float* keys =
        Rotation(attention.rotary, head_size, head.rotated).keys(at.queries + width, head.key_tokens, key_stride);
    head.pack_keys(keys, key_stride);
    pack_values(at.queries + 2 * width, stride, key_mask.attended(at.sequence), head.key_tokens, head.padded_tokens,
                head_size, head.values);
  };
  auto attend = [&](Head& head, const HeadPosition& at, size_t first_query, size_t end) {
    const TileRegisters registers;
    const PositionBias head_bias(attention.bias_of_head(at.column), tokens, head.bias);
    const Rotation rotation(attention.rotary, head_size, head.rotated);
    for (size_t first = first_query; first < end; first += kMaxBlockQueries) {
      const size_t count = std::min(kMaxBlockQueries, end - first);
      head.range = local.range(first, count, head.key_tokens);
      const BlockMask block_mask(key_mask, local, at.sequence, first, count, head.range, head.window_mask);
      size_t query_stride = stride;
      const float* rows = rotation.queries(at.queries + first * stride, first, count, query_stride);
      head.pack_queries(rows, query_stride, count, attention.scale * kLog2E);
      attend_block(head, count, {block_mask.rows, block_mask.stride, head_bias.row(first)},
                   y + (at.sequence * tokens + first) * width + at.column, width);
    }
  };
  compute_heads(attention, true, Head::panel_bytes(tokens, head_size), threads, make, pack, attend);
}

}  // namespace bert
#endif
