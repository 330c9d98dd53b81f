// Quantized attention (QuantizedAttention, QuantizedRelativeAttention, QuantizedRotaryAttention,
// QuantizedLocalAttention, QuantizedDisentangledAttention): y = quantize(softmax(Q·Kᵀ · scale + bias + mask) · V) for
// each head, with float32 inputs and uint8 outputs. Blocking: see attention.h.
//
// With AMX, heads of more than 32 elements and texts of 64 tokens or more are multiplied in tiles: see
// tile_attention.cc.
//
// All other matmuls are int16 × int16 → int32 and quantize symmetrically at run time, so no calibration is needed: keys
// and values have one scale for a head of a sequence, queries and probabilities one for each row. Numbers of steps are
// chosen such that no int32 sum overflows.
//
// Packed int16 panels, C = kPanelColumns; the padded head size is a multiple of C:
//
//   keys    [key_tokens / C, padded size / 2, C, 2]        values  [head_size / C, key_tokens / 2, C, 2]
//
//     panel 0:        token 0     token 1     …              panel 0:        element 0   element 1   …
//     elements e, f   [k0e k0f]  [k1e k1f]  …                tokens 0, 1     [v00 v10]   [v01 v11]  …
//     elements g, h   [k0g k0h]  [k1g k1h]  …                tokens 2, 3     [v20 v30]   [v21 v31]  …
//       …                                                      …
//
//   Elements of keys and queries are in the order of narrow_to_i16_unordered: the same for both, and sums do not care.
#include <algorithm>
#include <cmath>
#include <utility>

#include "attention.h"
#include "attention_packing.h"
#include "disentangled_attention.h"
#include "exp2.h"
#ifdef BERT_AMX
#include "tile_attention.h"
#endif

namespace bert {

namespace {

#ifdef BERT_AMX
constexpr size_t kMinTileTokens = 64, kMinTileHeadSize = 33;  // tiles of less are mostly padding
constexpr size_t kMaxTileHeadSize = 65536;                    // of more products of digits, int32 sums could overflow
#endif
constexpr float kValueSteps = 4095;           // the values of attended keys are int16 from -kValueSteps to kValueSteps
constexpr size_t kMaxKeysOfSum = 2048;        // of more, equal probabilities are rounded alike by more than 0.2 %
constexpr float kMaxProbabilitySum = 524288;  // of a row, in steps; times kValueSteps it is below kMaxInt32

// The position scores of one head, and the tables that they are made from.
struct Positions {
  PositionScores scores;
  size_t panel_bytes;
  const int16_t *keys, *queries;  // panels of the head
  float keys_scale, queries_scale;
};

// Scales of packed keys and values, from int16 to float32. They stand before the panels.
struct alignas(64) PanelScales {
  float keys, values;
};

// Packed keys and values of one head of one sequence, and working memory for a block of queries.
struct Head {
  size_t key_tokens, head_size;
  size_t padded_size, padded_tokens;  // to whole panels
  float scale, query_steps, max_probability_sum;
  PanelScales* scales;
  int16_t *keys, *values, *queries, *probabilities;  // queries [R, padded_size], probabilities [R, padded_tokens]
  float *scores, *bias;     // scores [R, padded_tokens], R up to kMaxTileRows; bias: of PositionBias or PositionScores
  const uint8_t* attended;  // null for all; keys that no query attends to must not change the scales
  float* rotated;           // memory of a Rotation
  uint8_t* window_mask;     // memory of a Window
  KeyRange range;           // of the block of queries
  Positions positions = {{0, 0, nullptr}, 0, nullptr, nullptr, 0, 0};

  // Bytes of packed keys and values with their scales.
  static size_t panel_bytes(size_t key_tokens, size_t head_size) {
    return sizeof(PanelScales) + 4 * round_up(key_tokens, kPanelColumns) * round_up(head_size, kPanelColumns);
  }

  // The panels are memory of panel_bytes, or part of the working memory if `panels` is null.
  Head(size_t key_tokens, size_t head_size, size_t bias_size, size_t rotation_size, size_t window_size, float scale,
       const uint8_t* attended, Scratch& scratch, uint8_t* panels)
      : key_tokens(key_tokens),
        head_size(head_size),
        padded_size(round_up(head_size, kPanelColumns)),
        padded_tokens(round_up(key_tokens, kPanelColumns)),
        scale(scale),
        query_steps(max_query_steps(head_size)),
        // Rounding adds up to half a step for each key.
        max_probability_sum(kMaxProbabilitySum - static_cast<float>(key_tokens) / 2),
        attended(attended) {
    const size_t sizes[] = {panels ? 0 : panel_bytes(key_tokens, head_size),
                            2 * kMaxTileRows * padded_size,
                            2 * kMaxTileRows * padded_tokens,
                            4 * kMaxTileRows * padded_tokens,
                            4 * bias_size,
                            4 * rotation_size,
                            window_size};  // bytes
    size_t total = 0;
    for (size_t size : sizes) total += size;
    uint8_t* memory = scratch.reserve(total);
    auto take = [&memory](size_t bytes) { return std::exchange(memory, memory + bytes); };
    uint8_t* const own_panels = take(sizes[0]);
    scales = reinterpret_cast<PanelScales*>(panels ? panels : own_panels);
    keys = reinterpret_cast<int16_t*>(scales + 1);
    values = keys + padded_tokens * padded_size;
    queries = reinterpret_cast<int16_t*>(take(sizes[1]));
    probabilities = reinterpret_cast<int16_t*>(take(sizes[2]));
    scores = reinterpret_cast<float*>(take(sizes[3]));
    bias = reinterpret_cast<float*>(take(sizes[4]));
    rotated = reinterpret_cast<float*>(take(sizes[5]));
    window_mask = take(sizes[6]);
  }

  size_t padded_keys() const { return round_up(range.count, kPanelColumns); }

  size_t token_pairs() const { return ceil_div(key_tokens, 2); }

  // Quantizes and packs keys [key_tokens, head_size].
  void pack_keys(const float* source, size_t stride) {
    const float max_abs = abs_max(source, key_tokens, head_size, stride, attended);
    scales->keys = max_abs / query_steps;
    pack_rows([&](size_t token) { return source + token * stride; }, key_tokens, padded_tokens, head_size,
              set1(query_steps / max_abs), keys);
  }

  // Quantizes and packs values [key_tokens, head_size].
  void pack_values(const float* source, size_t stride) {
    const size_t pairs = token_pairs();
    const float max_abs = abs_max(source, key_tokens, head_size, stride, attended);
    const F32 inverse_scale = set1(kValueSteps / max_abs);
    scales->values = max_abs / kValueSteps;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const float *even = source + 2 * pair * stride, *odd = even + stride;
      const size_t odd_size = 2 * pair + 1 < key_tokens ? head_size : 0;  // 0: zeros, if the last pair has one token
      for (size_t i = 0; i < padded_size; i += kLanes) {
        const I32 low = round_to_i32(load_n(even + i, remaining(head_size, i)) * inverse_scale);
        const I32 high = round_to_i32(load_n(odd + i, remaining(odd_size, i)) * inverse_scale);
        store_i32(values + 2 * ((i / kPanelColumns * pairs + pair) * kPanelColumns + i % kPanelColumns),
                  pair_i16(low, high));
      }
    }
  }
};

struct Output {
  uint8_t* y;  // of the first query
  size_t stride;
  F32 inverse_scale, zero_point;
};

// Quantizes R queries; returns the factor of each row from int32 scores to exponents of 2.
template <int R>
inline BERT_ALWAYS_INLINE void quantize_queries(const Head& head, const float* queries, size_t stride,
                                                float (&score_scales)[R]) {
  for (int r = 0; r < R; ++r) {
    const float* query = queries + r * stride;
    const float max_abs = abs_max(query, 1, head.head_size, stride, nullptr);
    const F32 inverse_scale = set1(head.query_steps / max_abs);
    for (size_t i = 0; i < head.head_size; i += kPanelColumns)
      store_i32(head.queries + r * head.padded_size + i, quantize_i16(query, head.head_size, i, inverse_scale));
    score_scales[r] = kLog2E * head.scale * head.scales->keys * max_abs / head.query_steps;
  }
}

// Step 2: turns scores into int16 probabilities; returns the factor of each row from int32 sums to outputs.
template <int R>
inline BERT_ALWAYS_INLINE void softmax(const Head& head, const F32 (&row_max)[R], const float (&score_scales)[R],
                                       float (&factors)[R]) {
  // Reduces all rows together, so that their latencies overlap.
  float maxima[R], steps[R];
  for (int r = 0; r < R; ++r) maxima[r] = reduce_max(row_max[r]);
  F32 sums[R];
  for (int r = 0; r < R; ++r) {
    const F32 maximum = set1(maxima[r]), scale = set1(score_scales[r] * kExponentUnit);
    float* scores = head.scores + r * head.padded_tokens;
    sums[r] = set1(0.0F);
    for (size_t token = 0; token < head.padded_keys(); token += kLanes) {
      const F32 power = exp2_scaled(fma(load(scores + token) - maximum, scale, set1(127 * kExponentUnit)));
      sums[r] += power;
      store(scores + token, power);
    }
  }
  for (int r = 0; r < R; ++r) {
    // The step depends on the sum, not on the maximum: if one key has half of the attention, hundreds of keys that
    // share the other half must not be rounded away.
    const float sum = reduce_sum(sums[r]);
    steps[r] = std::min(kMaxInt16, head.max_probability_sum / sum);
    // A query without any key gets zeros, as in ONNX Runtime's Attention.
    factors[r] = maxima[r] == -INFINITY ? 0 : head.scales->values / (steps[r] * sum);
  }
  for (int r = 0; r < R; ++r) {
    const float* powers = head.scores + r * head.padded_tokens;
    auto rounded = [&](size_t first) { return round_to_i32(load(powers + first) * set1(steps[r])); };
    for (size_t token = 0; token < head.padded_keys(); token += kPanelColumns)
      store_i32(head.probabilities + r * head.padded_tokens + token,
                narrow_to_i16(rounded(token), rounded(token + kLanes)));
    if (head.range.count <= kMaxKeysOfSum || factors[r] == 0) continue;
    I32 sum = zero_i32();
    for (size_t token = 0; token < head.padded_keys(); token += kLanes) sum = add(sum, rounded(token));
    factors[r] = head.scales->values / reduce_sum(to_f32(sum));
  }
}

// Step 3: y [R, head_size] = quantize(probabilities · values · factors).
template <int R>
inline BERT_ALWAYS_INLINE void weighted_sum(const Head& head, const float (&factors)[R], const Output& output) {
  for (size_t first = 0; first < head.head_size; first += kPanelColumns) {
    I32 acc[R][2];
    zero_accumulators(acc);
    const int16_t* values = head.values + 2 * first * head.token_pairs() + head.range.first * kPanelColumns;
    gemm_microkernel<DotS16, R>(bytes_of(head.probabilities), 2 * head.padded_tokens, bytes_of(values),
                                ceil_div(head.range.count, 2), acc);
    store_tile_u8<R>(
        output.y + first, output.stride, remaining(head.head_size, first), [&](int r, int half) BERT_ALWAYS_INLINE {
          const F32 scaled = fma(to_f32(acc[r][half]), set1(factors[r]) * output.inverse_scale, output.zero_point);
          return round_to_i32(min(scaled, set1(kClampBeforeU8)));
        });
  }
}

// Multiplies R keys from `first` on with the positions.
struct MultiplyKeys {
  template <int R>
  static void run(Head& head, const float* keys, size_t stride, size_t first) {
    Positions& positions = head.positions;
    const F32 inverse_scale = set1(1 / head.scales->keys);
    for (int r = 0; r < R; ++r)
      for (size_t i = 0; i < head.head_size; i += kPanelColumns)
        store_i32(head.queries + r * head.padded_size + i,
                  quantize_i16(keys + (first + r) * stride, head.head_size, i, inverse_scale));
    positions.scores.multiply_keys<DotS16, R>(bytes_of(head.queries), 2 * head.padded_size, head.padded_size / 2,
                                              positions.queries, positions.panel_bytes, first,
                                              set1(kLog2E * head.scales->keys * positions.queries_scale));
  }
};

// Attention of a block of R queries from `first` on.
struct Attend {
  template <int R>
  static void run(Head& head, const float* queries, size_t query_stride, size_t first, const float* bias,
                  const uint8_t* mask, size_t mask_stride, const Output& output) {
    Positions& positions = head.positions;
    float score_scales[R], factors[R];
    quantize_queries(head, queries, query_stride, score_scales);
    ptrdiff_t bias_step = -1;
    if (positions.scores) {
      F32 scales[R];
      for (int r = 0; r < R; ++r)
        scales[r] = set1(score_scales[r] / (head.scale * head.scales->keys) * positions.keys_scale);
      positions.scores.multiply_queries<DotS16, R>(bytes_of(head.queries), 2 * head.padded_size, head.padded_size / 2,
                                                   positions.keys, positions.panel_bytes, first, head.key_tokens,
                                                   scales);
      bias = positions.scores.bias();
      bias_step = positions.scores.bias_step();
    }
    F32 row_max[R];
    compute_scores<DotS16, R>(
        bytes_of(head.queries), 2 * head.padded_size, bytes_of(head.keys + head.range.first * head.padded_size),
        2 * kPanelColumns * head.padded_size, head.padded_size / 2, head.range.count, mask, mask_stride,
        [&](I32 acc, int row, size_t key) BERT_ALWAYS_INLINE {
          const F32 score = to_f32(acc);
          return bias ? fma(score, set1(score_scales[row]), load_unaligned(bias + row * bias_step + key)) : score;
        },
        head.scores, head.padded_tokens, row_max);
    if (bias) std::fill_n(score_scales, R, 1.0F);  // scores with a bias are exponents of 2 already
    softmax(head, row_max, score_scales, factors);
    weighted_sum(head, factors, output);
  }
};

}  // namespace

void Attention::compute(uint8_t* y, QuantParams output, const ThreadPool& threads,
                        const PositionTables<int16_t>* tables) const {
#ifdef BERT_AMX
  if (!tables && tokens >= kMinTileTokens && head_size >= kMinTileHeadSize && head_size <= kMaxTileHeadSize)
    return compute_in_tiles(*this, y, output, threads);
#endif
  const size_t width = num_heads * head_size, stride = 3 * width;
  const size_t bias_size = tables ? PositionScores::size(tokens) : bias ? PositionBias::size(tokens) : 0;
  const KeyMask key_mask(mask, batch, mask_rows, tokens);
  const Window local(window, tokens);
  auto make = [&](const HeadPosition& at, Scratch& scratch, uint8_t* panels) {
    const size_t key_tokens = key_mask.key_tokens(at.sequence);
    Head head(key_tokens, head_size, bias_size, Rotation::size(rotary, key_tokens, head_size), local.size(), scale,
              key_mask.attended(at.sequence), scratch, panels);
    head.positions.scores = {tokens, tables ? tables->max_tokens : 0, tables ? head.bias : nullptr};
    return head;
  };
  auto pack = [&](Head& head, const HeadPosition& at) {
    size_t key_stride = stride;
    const float* keys = Rotation(rotary, head_size, head.rotated).keys(at.queries + width, head.key_tokens, key_stride);
    head.pack_keys(keys, key_stride);
    head.pack_values(at.queries + 2 * width, stride);
    if (!tables) return;
    const size_t index = at.column / head_size, panels = index * tables->head_panels;
    Positions& positions = head.positions;
    positions.panel_bytes = tables->panel_bytes;
    positions.keys = tables->keys.panels.get() + panels;
    positions.queries = tables->queries.panels.get() + panels;
    positions.keys_scale = tables->keys.scales[index];
    positions.queries_scale = tables->queries.scales[index];
    for_each_row_block(head.key_tokens, [&](size_t first, size_t count) {
      kernel_by_rows<MultiplyKeys>(count)(head, keys, key_stride, first);
    });
  };
  auto attend = [&](Head& head, const HeadPosition& at, size_t first_query, size_t end) {
    const PositionBias head_bias(bias_of_head(at.column), tokens, head.bias);
    const Rotation rotation(rotary, head_size, head.rotated);
    for_each_row_block(end - first_query, [&](size_t offset, size_t count) {
      const size_t first = first_query + offset;
      head.range = local.range(first, count, head.key_tokens);
      const BlockMask block_mask(key_mask, local, at.sequence, first, count, head.range, head.window_mask);
      size_t query_stride = stride;
      const float* rows = rotation.queries(at.queries + first * stride, first, count, query_stride);
      const Output block = {y + (at.first_row + first) * width + at.column, width, set1(1 / output.scale),
                            set1(static_cast<float>(output.zero_point))};
      kernel_by_rows<Attend>(count)(head, rows, query_stride, first, head_bias.row(first), block_mask.rows,
                                    block_mask.stride, block);
    });
  };
  compute_heads(*this, !tables, Head::panel_bytes(tokens, head_size), threads, make, pack, attend);
}

}  // namespace bert
