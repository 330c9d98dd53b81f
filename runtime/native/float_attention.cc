// float32 attention (SelfAttention, RelativeAttention, RotaryAttention, LocalAttention, DisentangledAttention):
// y = softmax(Q·Kᵀ · scale + bias + mask) · V for each head. With BERT_BF16, also with both matmuls in bfloat16, whose
// queries, keys, values and probabilities are rounded to it (Bf16SelfAttention and so on).
// Blocking: see attention.h.
//
// Packed panels, C = kPanelColumns:
//
//   keys    [key_tokens / C, head_size padded to kLanes, C]     values  [head_size / C, key_tokens, C]
//
//     panel 0:     token 0  1  …  C-1                             panel 0:    element 0  1  …  C-1
//     element 0        k00 k10 …                                  token 0        v00 v01 …
//     element 1        k01 k11 …                                  token 1        v10 v11 …
//       …                                                           …
//
//   bfloat16: kBf16Group elements of a key, or those of as many tokens' values, lie together, as in
//   quantized_attention.cc.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "attention.h"
#include "attention_packing.h"
#include "disentangled_attention.h"
#include "exp2.h"
#include "packing.h"
#include "tile_attention.h"

namespace bert {

namespace {

// The position scores of one head, and the tables that they are made from.
struct Positions {
  PositionScores scores;
  size_t panel_bytes;
  const float *keys, *queries;  // panels of the head
};

// Packed keys and values of one head of one sequence, and working memory for a block of queries. T is the type of the
// matmuls' operands.
template <class T>
struct Head {
  using Dot = DotOf<T>;
  static constexpr size_t kStep = 4 / sizeof(T);  // elements of A that one step of the microkernel multiplies
  static constexpr size_t kGroup = kPanelGroup<T>;
  size_t key_tokens, head_size;
  size_t padded_tokens, padded_size;  // to whole panels; to kLanes · kStep
  T *keys, *values;
  T *queries, *probabilities;  // bfloat16: [kMaxTileRows, padded_size], [kMaxTileRows, padded_tokens]; float32: unused
  float *scores, *bias;        // scores [kMaxTileRows, padded_tokens]; bias: of PositionBias or PositionScores
  float* rotated;              // memory of a Rotation
  uint8_t* window_mask;        // memory of a Window
  KeyRange range;              // of the block of queries
  Positions positions = {{0, 0, nullptr}, 0, nullptr, nullptr};

  // Bytes of packed keys and values.
  static size_t panel_bytes(size_t key_tokens, size_t head_size) {
    return sizeof(T) * (round_up(key_tokens, kPanelColumns) * round_up(head_size, kLanes * kStep) +
                        round_up(key_tokens, kGroup) * round_up(head_size, kPanelColumns));
  }

  // The panels are memory of panel_bytes, or part of the working memory if `panels` is null.
  Head(size_t key_tokens, size_t head_size, size_t bias_size, size_t rotation_size, size_t window_size,
       Scratch& scratch, uint8_t* panels)
      : key_tokens(key_tokens),
        head_size(head_size),
        padded_tokens(round_up(key_tokens, kPanelColumns)),
        padded_size(round_up(head_size, kLanes * kStep)) {
    constexpr size_t rounded_rows = kStep > 1 ? kMaxTileRows : 0;
    const size_t counts[] = {rounded_rows * padded_size, rounded_rows * padded_tokens};
    const size_t float_counts[] = {kMaxTileRows * padded_tokens, bias_size, rotation_size};
    const size_t own_panel_bytes = panels ? 0 : panel_bytes(key_tokens, head_size);
    size_t bytes = own_panel_bytes + window_size;
    for (size_t count : counts) bytes += count * sizeof(T);
    for (size_t count : float_counts) bytes += count * sizeof(float);
    uint8_t* memory = scratch.reserve(bytes);
    auto take = [&memory](size_t size) { return std::exchange(memory, memory + size); };
    uint8_t* const own_panels = take(own_panel_bytes);
    keys = reinterpret_cast<T*>(panels ? panels : own_panels);
    values = keys + padded_tokens * padded_size;
    T** const arrays[] = {&queries, &probabilities};
    for (size_t i = 0; i < std::size(arrays); ++i) *arrays[i] = reinterpret_cast<T*>(take(counts[i] * sizeof(T)));
    float** const float_arrays[] = {&scores, &bias, &rotated};
    for (size_t i = 0; i < std::size(float_arrays); ++i)
      *float_arrays[i] = reinterpret_cast<float*>(take(float_counts[i] * sizeof(float)));
    window_mask = memory;
  }

  size_t padded_keys() const { return round_up(range.count, kPanelColumns); }

  size_t value_rows() const { return round_up(key_tokens, kGroup); }

  // Steps of the microkernel for columns of a panel with so many elements.
  static size_t steps(size_t elements) { return round_up(elements, kGroup) / kStep; }

  // Packs keys [key_tokens, head_size].
  void pack_keys(const float* source, size_t stride) {
    pack_rows([&](size_t token) { return source + token * stride; }, key_tokens, padded_tokens, head_size, keys);
  }

  // Returns R queries or keys as the microkernel takes them, and sets their `stride`, which is in elements of T.
  template <int R>
  const uint8_t* microkernel_queries(const float* rows, [[maybe_unused]] size_t& stride) const {
#ifdef BERT_BF16
    if constexpr (kStep == 2) {
      for (int r = 0; r < R; ++r)
        for (size_t i = 0; i < head_size; i += 2 * kLanes)
          store_i32(queries + r * padded_size + i, load_bf16(rows + r * stride + i, remaining(head_size, i)));
      stride = padded_size;
      return bytes_of(queries);
    } else
#endif
      return bytes_of(rows);
  }
};

// Step 2: replaces scores by 2^(score - maximum); returns 1 / sum of each row.
template <int R, class T>
inline BERT_ALWAYS_INLINE void softmax(const Head<T>& head, const F32 (&row_max)[R], float (&inverse_sums)[R]) {
  // Reduces all rows together, so that their latencies overlap.
  float maxima[R];
  for (int r = 0; r < R; ++r) maxima[r] = reduce_max(row_max[r]);
  F32 sums[R];
  for (int r = 0; r < R; ++r) {
    float* scores = head.scores + r * head.padded_tokens;
    sums[r] = set1(0.0F);
    for (size_t token = 0; token < head.padded_keys(); token += kLanes) {
      const F32 score = load(scores + token);
      const F32 power = zero_where_equal(exp2(score - set1(maxima[r])), score, set1(-INFINITY));
      sums[r] += power;
      store(scores + token, power);
    }
  }
  // A query without any key gets zeros, as in ONNX Runtime's Attention.
  for (int r = 0; r < R; ++r) inverse_sums[r] = maxima[r] == -INFINITY ? 0 : 1 / reduce_sum(sums[r]);
}

// Step 3: y [R, head_size] = probabilities · values · factors, rows `y_stride` floats apart.
template <int R, class T>
inline BERT_ALWAYS_INLINE void weighted_sum(const Head<T>& head, const float (&factors)[R], float* y, size_t y_stride) {
  using Dot = typename Head<T>::Dot;
  const uint8_t* probabilities = bytes_of(head.scores);
#ifdef BERT_BF16
  if constexpr (Head<T>::kStep == 2) {
    for (int r = 0; r < R; ++r)
      for (size_t token = 0; token < head.padded_keys(); token += 2 * kLanes)
        store_i32(head.probabilities + r * head.padded_tokens + token,
                  load_bf16(head.scores + r * head.padded_tokens + token, 2 * kLanes));
    probabilities = bytes_of(head.probabilities);
  }
#endif
  for (size_t first = 0; first < head.head_size; first += kPanelColumns) {
    I32 acc[R][2];
    zero_accumulators(acc);
    gemm_microkernel<Dot, R>(probabilities, head.padded_tokens * sizeof(T),
                             bytes_of(head.values + first * head.value_rows() + head.range.first * kPanelColumns),
                             head.steps(head.range.count), acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t column = first + kLanes * half;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        store_n(y + r * y_stride + column, Dot::sum_to_f32(acc[r][half]) * set1(factors[r]),
                remaining(head.head_size, column));
    }
  }
}

// Multiplies R keys from `first` on with the positions.
template <class T>
struct MultiplyKeys {
  template <int R>
  static void run(Head<T>& head, const float* keys, size_t stride, size_t first) {
    Positions& positions = head.positions;
    positions.scores.multiply_keys<DotF32, R>(bytes_of(keys + first * stride), stride * sizeof(float), head.head_size,
                                              positions.queries, positions.panel_bytes, first, set1(kLog2E));
  }
};

// Attention of a block of R queries from `first` on.
template <class T>
struct Attend {
  template <int R>
  static void run(Head<T>& head, const float* queries, size_t query_stride, size_t first, float scale,
                  const float* bias, const uint8_t* mask, size_t mask_stride, float* y, size_t y_stride) {
    Positions& positions = head.positions;
    const F32 log2_scale = set1(scale * kLog2E);
    ptrdiff_t bias_step = -1;
    if (positions.scores) {
      F32 scales[R];
      std::fill_n(scales, R, set1(kLog2E));
      positions.scores.multiply_queries<DotF32, R>(bytes_of(queries), query_stride * sizeof(float), head.head_size,
                                                   positions.keys, positions.panel_bytes, first, head.key_tokens,
                                                   scales);
      bias = positions.scores.bias();
      bias_step = positions.scores.bias_step();
    }
    F32 row_max[R];
    using Dot = typename Head<T>::Dot;
    const uint8_t* rows = head.template microkernel_queries<R>(queries, query_stride);
    compute_scores<Dot, R>(
        rows, query_stride * sizeof(T), bytes_of(head.keys + head.range.first * head.padded_size),
        kPanelColumns * head.padded_size * sizeof(T), head.steps(head.head_size), head.range.count, mask, mask_stride,
        [&](I32 acc, int row, size_t key) BERT_ALWAYS_INLINE {
          const F32 score = Dot::sum_to_f32(acc) * log2_scale;
          return bias ? score + load_unaligned(bias + row * bias_step + key) : score;
        },
        head.scores, head.padded_tokens, row_max);
    float inverse_sums[R];
    softmax(head, row_max, inverse_sums);
    weighted_sum(head, inverse_sums, y, y_stride);
  }
};

// Attention::compute with operands of T in both matmuls.
template <class T>
void compute_attention(const Attention& attention, float* y, const ThreadPool& threads,
                       const PositionTables<float>* tables) {
  const size_t tokens = attention.tokens, head_size = attention.head_size;
  const size_t width = attention.num_heads * head_size, stride = 3 * width;
  const size_t bias_size = tables ? PositionScores::size(tokens) : attention.bias ? PositionBias::size(tokens) : 0;
  const KeyMask key_mask(attention.mask, attention.batch, attention.mask_rows, tokens);
  const Window local(attention.window, tokens);
  auto make = [&](const HeadPosition& at, Scratch& scratch, uint8_t* panels) {
    const size_t key_tokens = key_mask.key_tokens(at.sequence);
    Head<T> head(key_tokens, head_size, bias_size, Rotation::size(attention.rotary, key_tokens, head_size),
                 local.size(), scratch, panels);
    head.positions.scores = {tokens, tables ? tables->max_tokens : 0, tables ? head.bias : nullptr};
    return head;
  };
  auto pack = [&](Head<T>& head, const HeadPosition& at) {
    size_t key_stride = stride;
    const float* keys =
        Rotation(attention.rotary, head_size, head.rotated).keys(at.queries + width, head.key_tokens, key_stride);
    head.pack_keys(keys, key_stride);
    pack_values(at.queries + 2 * width, stride, key_mask.attended(at.sequence), head.key_tokens, head.value_rows(),
                head_size, head.values);
    if (!tables) return;
    const size_t panels = at.column / head_size * tables->head_panels;
    head.positions.panel_bytes = tables->panel_bytes;
    head.positions.keys = tables->keys.panels.get() + panels;
    head.positions.queries = tables->queries.panels.get() + panels;
    for_each_row_block(head.key_tokens, [&](size_t first, size_t count) {
      kernel_by_rows<MultiplyKeys<T>>(count)(head, keys, key_stride, first);
    });
  };
  auto attend = [&](Head<T>& head, const HeadPosition& at, size_t first_query, size_t end) {
    const PositionBias head_bias(attention.bias_of_head(at.column), tokens, head.bias);
    const Rotation rotation(attention.rotary, head_size, head.rotated);
    for_each_row_block(end - first_query, [&](size_t offset, size_t count) {
      const size_t first = first_query + offset;
      head.range = local.range(first, count, head.key_tokens);
      const BlockMask block_mask(key_mask, local, at.sequence, first, count, head.range, head.window_mask);
      size_t query_stride = stride;
      const float* rows = rotation.queries(at.queries + first * stride, first, count, query_stride);
      kernel_by_rows<Attend<T>>(count)(head, rows, query_stride, first, attention.scale, head_bias.row(first),
                                       block_mask.rows, block_mask.stride,
                                       y + (at.first_row + first) * width + at.column, width);
    });
  };
  compute_heads(attention, !tables, Head<T>::panel_bytes(tokens, head_size), threads, make, pack, attend);
}

}  // namespace

void Attention::compute(float* y, const ThreadPool& threads, const PositionTables<float>* tables) const {
  compute_attention<float>(*this, y, threads, tables);
}

#ifdef BERT_BF16
void Attention::compute_bf16(float* y, const ThreadPool& threads, const PositionTables<float>* tables) const {
#ifdef BERT_AMX
  if (!tables) return compute_in_tiles(*this, y, threads);
#endif
  compute_attention<BFloat16>(*this, y, threads, tables);
}
#endif

}  // namespace bert
