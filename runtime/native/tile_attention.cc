// Attention by AMX tiles: y = softmax(Q·Kᵀ · scale + bias + mask) · V for each head. Blocking: see attention.h, with
// blocks of 16 queries, a row of tiles.
//
// For float32 outputs, all is rounded to bfloat16. For uint8 outputs, queries and keys are int16 (DigitProducts), and
// values are sums of two bfloat16. bfloat16 has the exponents of float32, so that probabilities and values need no
// scale: 2^(score - maximum) is rounded as it is, and the outputs are divided by the sum.
//
// Rows of A, queries or probabilities, are tiles; columns of B, keys or values, are panels of tiles, C = kPanelColumns
// = 32. A depth is what a row of a tile holds of K: elements of the head, or keys.
//
//   A  [depths, parts, 16, 64 bytes]        B  [panels, depths, parts, 16, C, 4 bytes]
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

constexpr size_t kPanelTileBytes = kTileRows * kPanelColumns * 4;  // a depth of a panel
constexpr size_t kBf16Depth = 32;                                  // bfloat16 of a tile's row

// Scores of queries and keys that are rounded to bfloat16.
class Bf16Products {
 public:
  static constexpr int kValueParts = 1;
  static size_t row_bytes(size_t head_size) { return round_up(head_size, kBf16Depth) * sizeof(BFloat16); }

  // Packs keys [count, head_size], rows `stride` apart, with zeros up to `padded` rows. Returns their unit.
  static float pack_keys(const float* keys, size_t stride, size_t count, size_t padded, size_t head_size,
                         const uint8_t*, uint8_t* panels) {
    pack_rows([&](size_t token) { return keys + token * stride; }, count, padded, head_size,
              reinterpret_cast<BFloat16*>(panels));
    return 1;
  }
  // Packs a query as a row of tiles, `to` in the first. Returns its unit.
  static float pack_query(const float* query, size_t head_size, uint8_t* to) {
    for (size_t i = 0; i < head_size; i += kBf16Depth, to += kTileBytes)
      store_i32(to, load_bf16(query + i, remaining(head_size, i)));
    return 1;
  }
  // sums [16, C] = queries · panel of keys
  void multiply(const uint8_t* queries, const uint8_t* panel, size_t row_bytes) {
    multiply_tiles<DotBF16, 1>(queries, panel, row_bytes / 4, sums_, kPanelColumns, [](size_t) {});
  }
  F32 sum(size_t row, size_t column) const { return load(sums_ + row * kPanelColumns + column); }

 private:
  alignas(64) float sums_[kTileRows * kPanelColumns];
};

// Scores of queries and keys that are int16, as two signed digits of base 256: bfloat16 would leave an error of 11
// steps of the output where scores are hundreds. The product of the low digits is left out: in heads of 64 elements it
// is about 4e-5 of the largest query times the largest key, which counts where both have large outliers, in different
// elements.
//
//   (h · 256 + l) · (h · 256 + l) = 256 · (h · h · 256 + h · l + l · h) + l · l
class DigitProducts {
 public:
  static constexpr int kValueParts = 2;
  static size_t row_bytes(size_t head_size) { return 2 * round_up(head_size, kDepth); }

  static float pack_keys(const float* keys, size_t stride, size_t count, size_t padded, size_t head_size,
                         const uint8_t* attended, uint8_t* panels) {
    const float max_abs = abs_max(keys, count, head_size, stride, attended);
    const F32 inverse_scale = set1(kSteps / max_abs);
    for (size_t first = 0; first < padded; first += kLanes) {
      uint8_t* to = panels + first / kPanelColumns * kPanelColumns * row_bytes(head_size) + first % kPanelColumns * 4;
      for (size_t i = 0; i < head_size; i += kDepth, to += 2 * kPanelTileBytes) {
        I32 high[kLanes], low[kLanes];
        for (size_t lane = 0; lane < kLanes; ++lane) {
          high[lane] = low[lane] = zero_i32();
          if (first + lane < count)
            split_row(keys + (first + lane) * stride, head_size, i, inverse_scale, high[lane], low[lane]);
        }
        transpose_4_bytes(high);
        transpose_4_bytes(low);
        for (size_t group = 0; group < kLanes; ++group) {
          store_i32(to + group * kPanelColumns * 4, high[group]);
          store_i32(to + kPanelTileBytes + group * kPanelColumns * 4, low[group]);
        }
      }
    }
    return max_abs / kSteps;
  }
  static float pack_query(const float* query, size_t head_size, uint8_t* to) {
    const float max_abs = abs_max(query, 1, head_size, 0, nullptr);
    for (size_t i = 0; i < head_size; i += kDepth, to += 2 * kTileBytes) {
      I32 high, low;
      split_row(query, head_size, i, set1(kSteps / max_abs), high, low);
      store_i32(to, high);
      store_i32(to + kTileBytes, low);
    }
    return max_abs / (kSteps / kBase);
  }
  void multiply(const uint8_t* queries, const uint8_t* panel, size_t row_bytes) {
    constexpr size_t kStride = kPanelColumns * 4;
    asm volatile("" ::: "memory");  // the intrinsics of GCC 12 do not say that they read memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t i = 0; i < row_bytes; i += 2 * kDepth, queries += 2 * kTileBytes, panel += 2 * kPanelTileBytes) {
      const uint8_t* low = panel + kPanelTileBytes;
      _tile_loadd(4, queries, 64);
      _tile_loadd(6, panel, kStride);
      multiply_tile<0, 4, 6>();
      _tile_loadd(7, panel + kStride / 2, kStride);
      multiply_tile<1, 4, 7>();
      _tile_loadd(5, queries + kTileBytes, 64);
      multiply_tile<2, 5, 6>();
      multiply_tile<3, 5, 7>();
      _tile_loadd(6, low, kStride);
      multiply_tile<2, 4, 6>();
      _tile_loadd(7, low + kStride / 2, kStride);
      multiply_tile<3, 4, 7>();
    }
    _tile_stored(0, high_, kStride);
    _tile_stored(1, high_ + kPanelColumns / 2, kStride);
    _tile_stored(2, mixed_, kStride);
    _tile_stored(3, mixed_ + kPanelColumns / 2, kStride);
  }
  F32 sum(size_t row, size_t column) const {
    const size_t at = row * kPanelColumns + column;
    return fma(to_f32(load_i32(high_ + at)), set1(kBase), to_f32(load_i32(mixed_ + at)));
  }

 private:
  static constexpr size_t kDepth = 64;
  static constexpr float kBase = 256, kSteps = 127 * kBase;  // of a query's, or a head's keys', largest element

  // The digits of kDepth elements of a row from `first` on. Their order is that of quantize_i16 and split_i16.
  static void split_row(const float* row, size_t size, size_t first, F32 inverse_scale, I32& high, I32& low) {
    split_i16(quantize_i16(row, size, first, inverse_scale), quantize_i16(row, size, first + 2 * kLanes, inverse_scale),
              high, low);
  }
  template <int Sums, int A, int B>
  static void multiply_tile() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
  alignas(64) int32_t high_[kTileRows * kPanelColumns];
  int32_t mixed_[kTileRows * kPanelColumns];
};

// Values [keys, head_size] as sums of `Parts` bfloat16, and their products with probabilities.
template <int Parts>
class WeightedSums {
 public:
  // Of a panel: 32 elements of the head.
  static size_t panel_bytes(size_t padded_keys) { return Parts * padded_keys * kPanelColumns * sizeof(BFloat16); }

  // Packs values, rows `stride` apart, with zeros for those that no query attends to: padding may hold NaN.
  static void pack(const float* values, size_t stride, const uint8_t* attended, size_t count, size_t padded,
                   size_t head_size, uint8_t* panels) {
    for (size_t i = 0; i < round_up(head_size, kPanelColumns); i += kLanes) {
      uint8_t* const panel = panels + i / kPanelColumns * panel_bytes(padded) + i % kPanelColumns * 4;
      for (size_t token = 0; token < padded; token += 2) {
        F32 rows[2];
        for (size_t row = 0; row < 2; ++row) {
          const size_t at = token + row;
          rows[row] = at < count && (!attended || attended[at])
                          ? load_n(values + at * stride + i, remaining(head_size, i))
                          : set1(0.0F);
        }
        uint8_t* to = panel + token / kBf16Depth * Parts * kPanelTileBytes + token % kBf16Depth / 2 * kPanelColumns * 4;
        for (int part = 0; part < Parts; ++part, to += kPanelTileBytes) {
          const I32 rounded = interleave_bf16(rows[0], rows[1]);
          store_i32(to, rounded);
          rows[0] = rows[0] - even_bf16(rounded);
          rows[1] = rows[1] - odd_bf16(rounded);
        }
      }
    }
  }
  // sums [16, C] = probabilities [16, padded_keys] · panel
  void multiply(const uint8_t* probabilities, const uint8_t* panel, size_t padded_keys) {
    constexpr size_t kStride = kPanelColumns * 4;
    asm volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    for (size_t key = 0; key < padded_keys; key += kBf16Depth, probabilities += kTileBytes) {
      _tile_loadd(4, probabilities, 64);
      for (int part = 0; part < Parts; ++part, panel += kPanelTileBytes) {
        _tile_loadd(6, panel, kStride);
        DotBF16::multiply_tile<0, 4, 6>();
        _tile_loadd(7, panel + kStride / 2, kStride);
        DotBF16::multiply_tile<1, 4, 7>();
      }
    }
    _tile_stored(0, sums_, kStride);
    _tile_stored(1, sums_ + kPanelColumns / 2, kStride);
  }
  F32 sum(size_t row, size_t column) const { return load(sums_ + row * kPanelColumns + column); }

 private:
  alignas(64) float sums_[kTileRows * kPanelColumns];
};

// Packed keys, values and queries of one head of one sequence, and working memory for a block of queries.
template <class Products>
struct Head {
  using Values = WeightedSums<Products::kValueParts>;
  size_t key_tokens, head_size;
  size_t padded_tokens;  // to whole panels
  float* key_unit;       // of the keys' products; stands before the panels
  uint8_t *keys, *values;
  uint8_t *queries, *probabilities;  // rows of tiles
  float* query_units;
  float *scores, *bias;  // scores [16, padded_tokens]; bias: of PositionBias
  float* rotated;        // memory of a Rotation
  uint8_t* window_mask;  // memory of a Window
  KeyRange range;        // of the block of queries

  // Bytes of packed keys and values, with the keys' unit.
  static size_t panel_bytes(size_t key_tokens, size_t head_size) {
    const size_t padded_tokens = round_up(key_tokens, kPanelColumns);
    return 64 + padded_tokens * Products::row_bytes(head_size) +
           ceil_div(head_size, kPanelColumns) * Values::panel_bytes(padded_tokens);
  }

  // The panels are memory of panel_bytes, or part of the working memory if `panels` is null.
  Head(size_t tokens, size_t key_tokens, size_t head_size, size_t bias_size, size_t rotation_size, size_t window_size,
       Scratch& scratch, uint8_t* panels)
      : key_tokens(key_tokens), head_size(head_size), padded_tokens(round_up(key_tokens, kPanelColumns)) {
    const size_t sizes[] = {panels ? 0 : panel_bytes(key_tokens, head_size),
                            round_up(tokens, kTileRows) * Products::row_bytes(head_size),
                            kTileRows * padded_tokens * sizeof(BFloat16),
                            tokens * sizeof(float),
                            kTileRows * padded_tokens * sizeof(float),
                            bias_size * sizeof(float),
                            rotation_size * sizeof(float),
                            window_size};  // bytes
    size_t total = 0;
    for (size_t size : sizes) total += round_up(size, 64);
    uint8_t* memory = scratch.reserve(total);
    auto take = [&memory](size_t size) { return std::exchange(memory, memory + round_up(size, 64)); };
    uint8_t* const own_panels = take(sizes[0]);
    key_unit = reinterpret_cast<float*>(panels ? panels : own_panels);
    keys = (panels ? panels : own_panels) + 64;
    values = keys + padded_tokens * Products::row_bytes(head_size);
    queries = take(sizes[1]);
    probabilities = take(sizes[2]);
    query_units = reinterpret_cast<float*>(take(sizes[3]));
    scores = reinterpret_cast<float*>(take(sizes[4]));
    bias = reinterpret_cast<float*>(take(sizes[5]));
    rotated = reinterpret_cast<float*>(take(sizes[6]));
    window_mask = take(sizes[7]);
  }

  size_t padded_keys() const { return round_up(range.count, kPanelColumns); }
  // Tiles of queries from `first` on, a multiple of 16.
  uint8_t* query_tiles(size_t first) const { return queries + first * Products::row_bytes(head_size); }
};

// Mask of a block of queries, and their bias from the first key of the range on; each may be null.
struct ScoreTerms {
  const uint8_t* mask;
  size_t mask_stride;
  const float* bias;  // of the first query; that of the next starts a float earlier
};

// Step 1: scores of a block's queries, and the maximum of each row by lane. Scores times `units` are exponents of 2; a
// bias makes units 1. Keys that the mask leaves out, and padding, get -infinity.
template <class Products>
void compute_scores(const Head<Products>& head, const uint8_t* queries, size_t rows, const ScoreTerms& terms,
                    float (&units)[kTileRows], F32 (&best)[kTileRows]) {
  const size_t padded_keys = head.padded_keys(), row_bytes = Products::row_bytes(head.head_size);
  Products products[2];  // of two panels: while the tiles multiply the next one, vectors finish the one before
  const auto finish = [&](size_t first_key, auto is_plain) BERT_ALWAYS_INLINE {
    const Products& panel = products[first_key / kPanelColumns % 2];
    float* to = head.scores + first_key;
    for (size_t row = 0; row < rows; ++row, to += head.padded_tokens) {
      F32 row_best = best[row];
#pragma GCC unroll 2
      for (size_t column = 0; column < kPanelColumns; column += kLanes) {
        F32 score = panel.sum(row, column);
        if constexpr (!is_plain.value) {
          const size_t key = first_key + column;
          const ptrdiff_t left = remaining(head.range.count, key);
          if (terms.bias) score = fma(score, set1(units[row]), load_unaligned(terms.bias - row + key));
          const LaneMask attends =
              terms.mask ? load_mask(terms.mask + row * terms.mask_stride + key, left) : first_lanes(left);
          score = select(attends, score, set1(-INFINITY));
        }
        store(to + column, score);
        row_best = max(row_best, score);
      }
      best[row] = row_best;
    }
  };
  const auto finish_panel = [&](size_t key) BERT_ALWAYS_INLINE {
    if (terms.mask || terms.bias || key + kPanelColumns > head.range.count)
      finish(key, std::false_type());
    else
      finish(key, std::true_type());
  };
  for (size_t row = 0; row < rows; ++row) best[row] = set1(-INFINITY);
  for (size_t key = 0; key < padded_keys; key += kPanelColumns) {
    products[key / kPanelColumns % 2].multiply(queries, head.keys + (head.range.first + key) * row_bytes, row_bytes);
    if (key) finish_panel(key - kPanelColumns);
  }
  if (padded_keys) finish_panel(padded_keys - kPanelColumns);
  if (terms.bias) std::fill_n(units, rows, 1.0F);
}

// Step 2: turns R rows of scores from `first` on into probabilities, as rows of tiles, and returns 1 / sum of each row.
// A NaN of a key becomes that of its queries.
template <int R, class Products>
inline BERT_ALWAYS_INLINE void softmax(const Head<Products>& head, size_t first, const float* units, const F32* best,
                                       float* inverse_sums) {
  F32 maxima[R], sums[R];
  bool has_keys[R];
  for (int r = 0; r < R; ++r) {
    const float maximum = reduce_max(best[r]);
    has_keys[r] = maximum != -INFINITY;
    maxima[r] = set1(has_keys[r] ? maximum : 0);
    sums[r] = set1(0.0F);
  }
  const float* scores = head.scores + first * head.padded_tokens;
  uint8_t* to = head.probabilities + first * 64;
  for (size_t key = 0; key < head.padded_keys(); key += kBf16Depth, to += kTileBytes)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float* const at = scores + r * head.padded_tokens + key;
      const auto power = [&](const float* score)
                             BERT_ALWAYS_INLINE { return exp2_for_bf16((load(score) - maxima[r]) * set1(units[r])); };
      const I32 probabilities = narrow_to_bf16(power(at), power(at + kLanes));
      store_i32(to + r * 64, probabilities);
      sums[r] += even_bf16(probabilities) + odd_bf16(probabilities);  // equal ones are rounded alike
    }
  // A query without any key gets zeros, as in ONNX Runtime's Attention.
  for (int r = 0; r < R; ++r) inverse_sums[r] = has_keys[r] ? 1 / reduce_sum(sums[r]) : 0;
}

// Calls f(first row, integral constant of the row count) for blocks of at most 4 rows.
template <class F>
void for_each_four_rows(size_t rows, const F& f) {
  size_t first = 0;
  for (; first + 4 <= rows; first += 4) f(first, std::integral_constant<int, 4>{});
  for (; first < rows; ++first) f(first, std::integral_constant<int, 1>{});
}

// The outputs of a block of queries: float32 as they are, or quantized. Rows are `stride` elements apart.
struct FloatOutput {
  float* y;
  size_t stride;
  // Stores R rows of a panel's outputs, value(r, half), of which `count` columns are valid.
  template <int R, class Value>
  void store_rows(size_t row, size_t column, ptrdiff_t count, const Value& value) const {
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half)
        store_n(y + (row + r) * stride + column + half * kLanes, value(r, half), count - half * kLanes);
  }
};
struct QuantizedOutput {
  uint8_t* y;
  size_t stride;
  F32 inverse_scale, zero_point;
  template <int R, class Value>
  void store_rows(size_t row, size_t column, ptrdiff_t count, const Value& value) const {
    store_tile_u8<R>(y + row * stride + column, stride, count, [&](int r, int half) BERT_ALWAYS_INLINE {
      return round_to_i32(min(fma(value(r, half), inverse_scale, zero_point), set1(kClampBeforeU8)));
    });
  }
};

// Attention of a block of queries, `rows` of them, whose tiles are packed.
template <class Products, class Output>
void attend_block(const Head<Products>& head, size_t first_query, size_t rows, const ScoreTerms& terms,
                  const Output& output) {
  float units[kTileRows], factors[kTileRows];
  F32 best[kTileRows];
  std::copy_n(head.query_units + first_query, rows, units);
  compute_scores(head, head.query_tiles(first_query), rows, terms, units, best);
  for_each_four_rows(
      rows, [&](size_t row, auto number) { softmax<number.value>(head, row, units + row, best + row, factors + row); });
  using Values = typename Head<Products>::Values;
  Values sums;
  const uint8_t* panel = head.values + Values::panel_bytes(head.range.first);
  for (size_t column = 0; column < head.head_size; column += kPanelColumns) {
    sums.multiply(head.probabilities, panel, head.padded_keys());
    panel += Values::panel_bytes(head.padded_tokens);
    for_each_four_rows(rows, [&](size_t row, auto number) {
      output.template store_rows<number.value>(row, column, remaining(head.head_size, column),
                                               [&](int r, int half) BERT_ALWAYS_INLINE {
                                                 return sums.sum(row + r, half * kLanes) * set1(factors[row + r]);
                                               });
    });
  }
}

// Calls f(first query, count) for blocks of queries.
template <class F>
void for_each_block(size_t first, size_t end, const F& f) {
  for (; first < end; first += kTileRows) f(first, std::min(kTileRows, end - first));
}

// Computes all heads; make_output(offset) is the output of a block of queries whose first element is y[offset].
template <class Products, class MakeOutput>
void compute_attention(const Attention& attention, const ThreadPool& threads, const MakeOutput& make_output) {
  using Head = Head<Products>;
  const size_t tokens = attention.tokens, head_size = attention.head_size;
  const size_t width = attention.num_heads * head_size, stride = 3 * width;
  const size_t bias_size = attention.bias ? PositionBias::size(tokens) : 0;
  const KeyMask key_mask(attention.mask, attention.batch, attention.mask_rows, tokens);
  const Window local(attention.window, tokens);
  auto make = [&](const HeadPosition& at, Scratch& scratch, uint8_t* panels) {
    const size_t key_tokens = key_mask.key_tokens(at.sequence);
    return Head(tokens, key_tokens, head_size, bias_size, Rotation::size(attention.rotary, key_tokens, head_size),
                local.size(), scratch, panels);
  };
  auto pack = [&](Head& head, const HeadPosition& at) {
    size_t key_stride = stride;
    const float* keys =
        Rotation(attention.rotary, head_size, head.rotated).keys(at.queries + width, head.key_tokens, key_stride);
    const uint8_t* attended = key_mask.attended(at.sequence);
    *head.key_unit =
        Products::pack_keys(keys, key_stride, head.key_tokens, head.padded_tokens, head_size, attended, head.keys);
    Head::Values::pack(at.queries + 2 * width, stride, attended, head.key_tokens, head.padded_tokens, head_size,
                       head.values);
  };
  auto attend = [&](Head& head, const HeadPosition& at, size_t first_query, size_t end) {
    const TileRegisters registers;
    const PositionBias head_bias(attention.bias_of_head(at.column), tokens, head.bias);
    const Rotation rotation(attention.rotary, head_size, head.rotated);
    // All queries first, since tiles would wait for what was just stored.
    for_each_block(first_query, end, [&](size_t first, size_t count) {
      size_t query_stride = stride;
      const float* rows = rotation.queries(at.queries + first * stride, first, count, query_stride);
      uint8_t* tiles = head.query_tiles(first - first_query);
      for (size_t row = 0; row < count; ++row) {
        const float unit = Products::pack_query(rows + row * query_stride, head_size, tiles + row * 64);
        // Above 0, so that -infinity stays it.
        head.query_units[first - first_query + row] =
            std::max(unit * *head.key_unit * attention.scale * kLog2E, kMinAbs);
      }
    });
    for_each_block(first_query, end, [&](size_t first, size_t count) {
      head.range = local.range(first, count, head.key_tokens);
      const BlockMask block_mask(key_mask, local, at.sequence, first, count, head.range, head.window_mask);
      attend_block(head, first - first_query, count, {block_mask.rows, block_mask.stride, head_bias.row(first)},
                   make_output((at.first_row + first) * width + at.column));
    });
  };
  compute_heads(attention, true, Head::panel_bytes(tokens, head_size), threads, make, pack, attend);
}

}  // namespace

void compute_in_tiles(const Attention& attention, float* y, const ThreadPool& threads) {
  const size_t width = attention.num_heads * attention.head_size;
  compute_attention<Bf16Products>(attention, threads, [&](size_t offset) { return FloatOutput{y + offset, width}; });
}

void compute_in_tiles(const Attention& attention, uint8_t* y, QuantParams output, const ThreadPool& threads) {
  const size_t width = attention.num_heads * attention.head_size;
  compute_attention<DigitProducts>(attention, threads, [&](size_t offset) {
    return QuantizedOutput{y + offset, width, set1(1 / output.scale), set1(static_cast<float>(output.zero_point))};
  });
}

}  // namespace bert
#endif
