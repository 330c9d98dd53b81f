// Attention in floats.
#include <cmath>
#include <utility>

#include "attention.h"

namespace bert {

namespace {

// 2^x for x <= 0 or NaN, to 2e-7 of it: a power of two times a polynomial of what is left of x.
F32 power_of_two(F32 x) {
  x = max(all(-126.0f), x);
  const F32 n = nearest(x), r = x - n;
  F32 p = all(1.5403530e-4f);  // ln(2)^k / k!
  for (float coefficient : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
    p = fma(p, r, all(coefficient));
  return scaled(p, n);
}

// The keys and values of one head of one sequence, and room for the scores of a few queries.
struct Head {
  size_t tokens, size, stride;  // stride: floats from token to token
  size_t tokens_padded;
  float *keys, *values, *scores;

  Head(size_t tokens, size_t size, size_t stride, Scratch& scratch)
      : tokens(tokens), size(size), stride(stride), tokens_padded(round_up(tokens, kColumns)) {
    const size_t counts[] = {tokens_padded * round_up(size, kLanes), tokens * round_up(size, kColumns),
                             kRows * tokens_padded};
    auto* memory = reinterpret_cast<float*>(scratch.take((counts[0] + counts[1] + counts[2]) * sizeof(float)));
    auto part = [&memory](size_t count) { return std::exchange(memory, memory + count); };
    keys = part(counts[0]);
    values = part(counts[1]);
    scores = part(counts[2]);
  }

  // keys [tokens, size] → panels of C = kColumns tokens: [tokens / C, size, C]
  void pack_keys(const float* source) {
    const size_t rows_of_panel = round_up(size, kLanes);
    for (size_t first = 0; first < tokens_padded; first += kLanes)
      for (size_t i = 0; i < size; i += kLanes) {
        I32 rows[kLanes];
        for (size_t row = 0; row < kLanes; ++row)
          rows[row] =
              first + row < tokens ? bits(load(source + (first + row) * stride + i, left(size, i))) : no_ints();
        transpose(rows);
        float* panel = keys + first / kColumns * kColumns * rows_of_panel + i * kColumns + first % kColumns;
        for (size_t row = 0; row < kLanes; ++row) store(panel + kColumns * row, rows[row]);
      }
  }

  // values [tokens, size] → panels of C columns: [size / C, tokens, C]; zeros where no query attends, since what a
  // padded row holds, times 0, need not be 0
  void pack_values(const float* source, const bool* any) {
    for (size_t token = 0; token < tokens; ++token)
      for (size_t i = 0; i < round_up(size, kColumns); i += kLanes) {
        const bool counts = !any || any[token];
        store(values + (i / kColumns * tokens + token) * kColumns + i % kColumns,
              counts ? load(source + token * stride + i, left(size, i)) : all(0.0f));
      }
  }
};

template <class T>
const uint8_t* bytes_of(const T* values) {
  return reinterpret_cast<const uint8_t*>(values);
}

// Scores of R queries, their softmax, and the sum of values it weights.
template <int R>
void attend(Head& head, const float* queries, float scale, const bool* mask, size_t mask_stride, float* y,
            size_t y_stride) {
  F32 highest[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) highest[r] = all(-INFINITY);
  const F32 scale_of_all = all(scale * 1.44269504f);  // scores are exponents of 2
  for (size_t first = 0; first < head.tokens; first += kColumns) {
    I32 acc[R][2];
    clear(acc);
    multiply<Floats, R>(bytes_of(queries), head.stride * sizeof(float),
                        bytes_of(head.keys + first * round_up(head.size, kLanes)), head.size, acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t token = first + kLanes * half;
      const ptrdiff_t tokens = left(head.tokens, token);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Lanes counts = mask ? lanes_of(mask + r * mask_stride + token, tokens) : first_lanes(tokens);
        const F32 score = select(counts, Floats::to_floats(acc[r][half]) * scale_of_all, all(-INFINITY));
        store(head.scores + r * head.tokens_padded + token, score);
        highest[r] = max(highest[r], score);
      }
    }
  }
  // What is reduced to one number is so for all queries together: each alone would wait for itself.
  float tops[R], factors[R];
  for (int r = 0; r < R; ++r) tops[r] = largest_of(highest[r]);
  F32 sums[R];
  for (int r = 0; r < R; ++r) {
    float* scores = head.scores + r * head.tokens_padded;
    sums[r] = all(0.0f);
    for (size_t token = 0; token < head.tokens_padded; token += kLanes) {
      const F32 score = load(scores + token);
      const F32 power = zero_where_equal(power_of_two(score - all(tops[r])), score, all(-INFINITY));
      sums[r] += power;
      store(scores + token, power);
    }
  }
  // A row without any key is zero, as ONNX Runtime has it.
  for (int r = 0; r < R; ++r) factors[r] = tops[r] == -INFINITY ? 0 : 1 / sum_of(sums[r]);
  for (size_t first = 0; first < head.size; first += kColumns) {
    I32 acc[R][2];
    clear(acc);
    multiply<Floats, R>(bytes_of(head.scores), head.tokens_padded * sizeof(float),
                        bytes_of(head.values + first * head.tokens), head.tokens, acc);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const size_t column = first + kLanes * half;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        store(y + r * y_stride + column, Floats::to_floats(acc[r][half]) * all(factors[r]), left(head.size, column));
    }
  }
}

using Attend = void (*)(Head&, const float*, float, const bool*, size_t, float*, size_t);

template <int... Rows>
Attend attend_of(size_t rows, std::integer_sequence<int, Rows...>) {
  static constexpr Attend functions[] = {attend<Rows + 1>...};
  return functions[rows - 1];
}

}  // namespace

void Attention::run(float* y, const Threads& threads) const {
  const size_t width = heads * head_size, stride = 3 * width;
  const Mask kept(mask, batch, tokens);
  auto job = [&](size_t number) {
    static thread_local Scratch scratch;
    const size_t sequence = number / heads, column = number % heads * head_size;
    const float* queries = qkv + sequence * tokens * stride + column;
    Head head(kept.count(sequence), head_size, stride, scratch);
    head.pack_keys(queries + width);
    head.pack_values(queries + 2 * width, kept.any(sequence));
    each_strip(tokens, [&](size_t first, size_t count) {
      const Attend attend_them = attend_of(count, std::make_integer_sequence<int, kRows>{});
      attend_them(head, queries + first * stride, scale, kept.from(sequence, first), tokens,
                         y + (sequence * tokens + first) * width + column, width);
    });
  };
  if (tokens) threads.each(batch * heads, job);
}

}  // namespace bert
